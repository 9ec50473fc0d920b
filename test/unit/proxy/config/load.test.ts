import { mkdirSync } from 'node:fs'
import { join } from 'node:path'
import t, { type Test } from 'tap'
import { ProxyError } from '../../../../src/base/errors.ts'
import { COMMANDS } from '../../../../src/commands.ts'
import { type Env, type Flags, loadConfig, rejectUnknownEnv } from '../../../../src/proxy/config/load.ts'
import { ENGINE } from '../../../../src/proxy/config/options/engine.ts'
import { SERVE } from '../../../../src/proxy/config/options/serve.ts'
import { REMOTE_AGENT } from '../../../../src/rollout/options.ts'

/** Returns the message of the `config_invalid` error of a failed load. */
function getRejection(load: () => unknown): string {
  try {
    load()
  } catch (error) {
    if (error instanceof ProxyError && error.code === 'config_invalid') return error.message
    throw error
  }
  throw new Error('nothing was rejected')
}

function serveRejection(flags: Flags, env: Env = {}): string {
  return getRejection(() => loadConfig(SERVE, flags, env))
}

function file(t: Test, content: unknown): string {
  const text = typeof content === 'string' ? content : JSON.stringify(content)
  return join(t.testdir({ 'proxy.json': text }), 'proxy.json')
}

t.test('without any setting every option has its default', async (t) => {
  t.match(loadConfig(SERVE, {}, {}), {
    mode: 'local',
    host: '127.0.0.1',
    port: 8080,
    engineUrls: { length: 0 },
    engineApiKey: undefined,
    maxBodyBytes: 16 * 2 ** 20,
    queueWaitMs: 30_000,
    relayTimeoutMs: 300_000,
    sessionTtlMs: 0,
    strictSessions: false,
    logLevel: 'info',
  })
})

t.test('every default of every command is a value that the option accepts', async (t) => {
  for (const command of COMMANDS) {
    const config: Record<string, unknown> = loadConfig(command, {}, {})
    for (const [key, option] of Object.entries(command.options)) {
      if ('default' in option) t.not(config[key], undefined, `${command.name} --${option.flag}`)
    }
  }
})

t.test('no two options of a command share a flag', async (t) => {
  for (const command of COMMANDS) {
    const flags = Object.values(command.options).map((option) => option.flag)
    t.equal(new Set(flags).size, flags.length, command.name)
  }
})

t.test('precedence is flag, environment, file, default', async (t) => {
  const config = file(t, { port: 1, host: 'file', mode: 'relay', queue_limit: 5 })
  const env = { LLM_PROXY_PORT: '2', LLM_PROXY_HOST: 'env' }
  const loaded = loadConfig(SERVE, { port: '3', config }, env)
  t.match(loaded, { port: 3, host: 'env', mode: 'relay', queueLimit: 5, durability: 'power' })
})

t.test('the derived variable precedes its alias, and an empty one counts as not set', async (t) => {
  t.equal(loadConfig(SERVE, {}, { PROXY_PORT: '1' }).port, 1)
  t.equal(loadConfig(SERVE, {}, { PROXY_PORT: '1', LLM_PROXY_PORT: '2' }).port, 2)
  t.equal(loadConfig(SERVE, {}, { PROXY_PORT: '1', LLM_PROXY_PORT: '' }).port, 1)
  t.equal(loadConfig(SERVE, {}, { RELAY_TIMEOUT: '12' }).relayTimeoutMs, 12_000)
})

t.test('a list of paths may be separated by colons in the environment, as PATH is', async (t) => {
  const { datasetDirs } = loadConfig(REMOTE_AGENT, {}, { HARBOR_DATASET_DIRS: '/a:/b,/c d:' })
  t.strictSame(datasetDirs, ['/a', '/b', '/c d'])
})

t.test(
  'a list comes from repeated flags, from commas in the environment, or from an array in the file',
  async (t) => {
    const urls = ['http://a:1', 'http://b:2']
    t.strictSame(loadConfig(SERVE, { engineUrls: urls }, {}).engineUrls, urls)
    t.strictSame(loadConfig(SERVE, {}, { LLM_PROXY_ENGINE_URL: 'http://a:1, http://b:2,' }).engineUrls, urls)
    t.strictSame(loadConfig(SERVE, { config: file(t, { engine_url: urls }) }, {}).engineUrls, urls)
    t.strictSame(loadConfig(SERVE, { config: file(t, { engine_url: urls[0] }) }, {}).engineUrls, [urls[0]])
  },
)

t.test('a file holds JSON types, and quantities with units as text', async (t) => {
  const config = file(t, { port: 0, strict_sessions: true, queue_wait: '2m', max_body_bytes: 4096 })
  t.match(loadConfig(SERVE, { config }, {}), {
    port: 0,
    strictSessions: true,
    queueWaitMs: 120_000,
    maxBodyBytes: 4096,
  })
})

t.test('the environment may name the file', async (t) => {
  t.equal(loadConfig(SERVE, {}, { LLM_PROXY_CONFIG: file(t, { port: 7 }) }).port, 7)
})

t.test('the demo engine does not read the variables of a proxy beside it', async (t) => {
  const env = { LLM_PROXY_PORT: '9000', LLM_PROXY_ENGINE_PORT: '9001' }
  t.equal(loadConfig(ENGINE, {}, env).port, 9001)
  t.equal(loadConfig(SERVE, {}, env).port, 9000)
})

t.test('a wrong value is reported with its origin and the accepted values', async (t) => {
  t.equal(serveRejection({ port: 'abc' }), '--port: invalid value "abc": expected an integer from 0 to 65535')
  t.equal(
    serveRejection({}, { PROXY_PORT: '70000' }),
    'PROXY_PORT: invalid value "70000": expected an integer from 0 to 65535',
  )
  t.equal(
    serveRejection({ mode: 'relai' }),
    '--mode: invalid value "relai": expected local or relay (did you mean relay?)',
  )
  const config = file(t, { queue_wait: '30 parsecs' })
  t.match(
    serveRejection({ config }),
    `queue_wait in ${config}: invalid value "30 parsecs": expected a duration`,
  )
})

t.test('a JSON value of the wrong type is rejected, whatever its text would mean', async (t) => {
  for (const [key, value] of Object.entries({
    host: 8080,
    port: true,
    strict_sessions: 1,
    db: null,
    model: {},
  })) {
    const config = file(t, { [key]: value })
    t.match(
      serveRejection({ config }),
      `${key} in ${config}: invalid value ${JSON.stringify(value)}: expected`,
    )
  }
  t.match(serveRejection({ config: file(t, { engine_url: ['http://a', 5] }) }), 'invalid value 5: expected')
})

t.test('one wrong item of a list is reported instead of the list', async (t) => {
  t.match(
    serveRejection({}, { LLM_PROXY_ENGINE_URL: 'http://a:1,b:2' }),
    /^LLM_PROXY_ENGINE_URL: invalid value "b:2": expected/,
  )
})

t.test('a secret and the credentials of a URL are omitted from messages', async (t) => {
  t.match(serveRejection({ engineApiKey: '' }), '--engine-api-key: invalid value: expected')
  const message = serveRejection({ engineUrls: ['ftp://user:hunter2@engine'] })
  t.match(message, 'ftp://***@engine')
  t.notMatch(message, 'hunter2')
  for (const [url, shown] of [
    ['http://user:hunter/2@engine:8000', 'http://***@engine:8000'],
    ['http://user:hun@ter2@an engine', 'http://***@an engine'],
    ['htp:/user:hunter2@engine', '***@engine'],
    ['user:hunter2@engine', '***@engine'],
  ])
    t.match(serveRejection({ engineUrls: [url!] }), `--engine-url: invalid value "${shown}"`)
  const config = file(t, { node_url: ['user:hunter2@engine'] })
  t.notMatch(serveRejection({ config }), /hunter2/)
  t.notMatch(serveRejection({ config: file(t, { db: ['postgres://user:hunter/2@db'] }) }), 'hunter')
  t.match(serveRejection({ port: 'http://user:hunter/2@engine' }), 'invalid value "http://***@engine"')
})

t.test('an unknown key of the file is rejected with the most similar name', async (t) => {
  const config = file(t, { engine_urls: ['http://a'] })
  t.equal(
    serveRejection({ config }),
    `${config}: there is no option "engine_urls" (did you mean engine_url?)`,
  )
  t.match(serveRejection({ config: file(t, { config: 'other.json' }) }), 'there is no option "config"')
  t.match(serveRejection({ config: file(t, '{"__proto__":{"port":1}}') }), 'there is no option "__proto__"')
})

t.test('a file that is missing, unreadable, not JSON or not an object is rejected in one line', async (t) => {
  const missing = join(t.testdir(), 'none.json')
  t.equal(serveRejection({ config: missing }), `--config: cannot read ${missing}: there is no such file`)
  t.match(serveRejection({}, { LLM_PROXY_CONFIG: missing }), /^LLM_PROXY_CONFIG: cannot read/)
  const directory = join(t.testdir(), 'directory')
  mkdirSync(directory)
  t.match(serveRejection({ config: directory }), 'EISDIR')
  t.match(serveRejection({ config: file(t, '{"port": 1,}') }), 'is not JSON')
  t.match(serveRejection({ config: file(t, '') }), 'is not JSON')
  t.match(serveRejection({ config: file(t, '[1]') }), 'must contain one JSON object')
  t.match(serveRejection({ config: file(t, 'null') }), 'must contain one JSON object')
})

t.test(
  'an unknown variable with the prefix of llm-proxy is rejected with the most similar name',
  async (t) => {
    t.equal(
      getRejection(() => rejectUnknownEnv(COMMANDS, { LLM_PROXY_PROT: '1' })),
      'LLM_PROXY_PROT is not a setting of llm-proxy (did you mean LLM_PROXY_PORT?)',
    )
    t.equal(
      getRejection(() => rejectUnknownEnv(COMMANDS, { LLM_PROXY_FOO: '1' })),
      'LLM_PROXY_FOO is not a setting of llm-proxy',
    )
    t.doesNotThrow(() => rejectUnknownEnv(COMMANDS, { LLM_PROXY_ENGINE_LATENCY: '1s', PATH: '/bin' }))
  },
)

t.test('variables that Kubernetes sets for a service named llm-proxy have no effect', async (t) => {
  const env = {
    LLM_PROXY_SERVICE_HOST: '10.0.0.1',
    LLM_PROXY_SERVICE_PORT: '8080',
    LLM_PROXY_SERVICE_PORT_HTTP: '8080',
    LLM_PROXY_PORT: 'tcp://10.0.0.1:8080',
    LLM_PROXY_PORT_8080_TCP: 'tcp://10.0.0.1:8080',
    LLM_PROXY_PORT_8080_TCP_ADDR: '10.0.0.1',
  }
  t.doesNotThrow(() => rejectUnknownEnv(COMMANDS, env))
  t.equal(loadConfig(SERVE, {}, env).port, 8080)
})

t.test(
  'a former name of an option is accepted on the command line, in the environment and in files',
  async (t) => {
    const path = join(t.testdir({ 'config.json': '{"heartbeat": "3s"}' }), 'config.json')
    t.equal(loadConfig(SERVE, {}, { LLM_PROXY_HEARTBEAT: '2s' }).answerKeepAliveMs, 2_000)
    t.equal(loadConfig(SERVE, { config: path }, {}).answerKeepAliveMs, 3_000)
    const both = { LLM_PROXY_HEARTBEAT: '2s', LLM_PROXY_ANSWER_KEEP_ALIVE: '4s' }
    t.equal(loadConfig(SERVE, { config: path }, both).answerKeepAliveMs, 4_000)
  },
)
