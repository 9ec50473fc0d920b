import { join } from 'node:path'
import t from 'tap'
import { checkServeConfig } from '../../../../src/proxy/config/check-serve.ts'
import { type Env, type Flags, loadConfig } from '../../../../src/proxy/config/load.ts'
import { SERVE } from '../../../../src/proxy/config/options/serve.ts'
import { SESSIONS_LIST } from '../../../../src/proxy/config/options/sessions.ts'
import { WORKER } from '../../../../src/proxy/config/options/worker.ts'

const ONE = 'admin-key-number-one'
const TWO = 'admin-key-number-two'

const load = (flags: Flags, env: Env = {}) => loadConfig(SERVE, flags, env)
const rejects = (message: RegExp) => ({ code: 'config_invalid', message })

t.test('several keys come from flags, from commas in the environment, or from lines of files', async (t) => {
  const folder = t.testdir({
    keys: `${ONE}\n\n  ${TWO}  \n`,
    'proxy.json': JSON.stringify({ admin_key: [ONE] }),
  })
  const path = join(folder, 'keys')
  t.same(load({ adminKeys: [ONE, TWO] }).adminKeys, [ONE, TWO])
  t.same(load({}, { LLM_PROXY_ADMIN_KEY: `${ONE},${TWO}` }).adminKeys, [ONE, TWO])
  t.same(load({ adminKeys: [`@${path}`] }).adminKeys, [ONE, TWO])
  t.same(load({}, { LLM_PROXY_AGENT_KEY_SECRET: `@${path}` }).agentKeySecrets, [ONE, TWO])
  t.same(load({ config: join(folder, 'proxy.json') }).adminKeys, [ONE])
  t.same(loadConfig(WORKER, {}, { LLM_PROXY_WORKER_KEY: ONE }).workerKeys, [ONE])
  t.same(loadConfig(SESSIONS_LIST, {}, { LLM_PROXY_ADMIN_KEY: ONE }).adminKeys, [ONE])
})

t.test('a file that is missing or has no key is rejected', async (t) => {
  const empty = join(t.testdir({ empty: '\n' }), 'empty')
  t.throws(() => load({ adminKeys: [`@${empty}`] }), rejects(/^--admin-key: there is no key in .*empty$/))
  t.throws(
    () => load({ adminKeys: ['@/nowhere'] }),
    rejects(/^--admin-key: cannot read \/nowhere: there is no such/),
  )
})

t.test('a key that is still a placeholder is rejected', async (t) => {
  const path = join(t.testdir({ key: 'CHANGE-ME-to-an-admin-key' }), 'key')
  for (const value of ['CHANGE-ME', 'CHANGE-ME-to-an-admin-key', 'change_me_please_please', `@${path}`]) {
    t.throws(
      () => load({}, { LLM_PROXY_ADMIN_KEY: value }),
      rejects(/^LLM_PROXY_ADMIN_KEY still has its placeholder/),
    )
    t.throws(
      () => loadConfig(WORKER, { workerKeys: [value] }, {}),
      rejects(/^--worker-key still has its placeholder/),
    )
  }
})

t.test('a key that can be guessed or cannot be sent is rejected, and not printed', async (t) => {
  for (const key of [
    'short',
    'fifteen-letters',
    'with space in the middle',
    'with,comma,in,the,middle',
    'schlüssel-schlüssel',
  ]) {
    t.throws(
      () => load({ adminKeys: [key] }),
      rejects(/^--admin-key: invalid value: expected a key of 16 or more printable characters/),
    )
  }
  const path = join(t.testdir({ 'proxy.json': `{"admin_key": "${ONE}" "port": 1}` }), 'proxy.json')
  const message = await Promise.resolve()
    .then(() => load({ config: path }))
    .then(String, String)
  t.match(message, 'is not JSON')
  t.notMatch(message, 'admin', 'nor the text around an error of the file')
})

t.test('keys require a closed proxy, and each key has one scope', async (t) => {
  const check = (flags: Flags) => () => checkServeConfig(load(flags))
  const [adminKeys, workerKeys, agentKeySecrets] = [
    [ONE],
    ['worker-key-number-one'],
    ['agent-secret-number-one'],
  ]
  t.doesNotThrow(check({ adminKeys }))
  t.doesNotThrow(check({ adminKeys, workerKeys, agentKeySecrets }))
  t.doesNotThrow(check({ mode: 'relay', adminKeys, workerKeys }))
  t.doesNotThrow(check({ adminKeys: [ONE, ONE, TWO] }), 'a list may contain a key twice')
  t.throws(check({ workerKeys }), rejects(/need an admin-key/))
  t.throws(check({ agentKeySecrets }), rejects(/need an admin-key/))
  t.throws(check({ viewKeys: ['view-key-number-one'] }), rejects(/need an admin-key/))
  t.throws(check({ metricsKeys: ['metrics-key-number-one'] }), rejects(/need an admin-key/))
  t.throws(check({ adminKeys, viewKeys: [ONE] }), rejects(/must differ/))
  t.throws(check({ mode: 'relay', adminKeys }), rejects(/needs a worker-key/))
  t.throws(check({ adminKeys, workerKeys: [TWO, ONE] }), rejects(/must differ/))
  t.throws(check({ adminKeys, agentKeySecrets: [ONE] }), rejects(/must differ/))
})
