/**
 * Schemathesis generates requests from openapi.json, and checks the responses: no 5xx, no undocumented status, no
 * response that violates its schema, no route that documents a key and works without. The same requests in each run, on
 * a proxy without keys and with an agent's key; with FULL=1 with each kind of key.
 */
import { writeFileSync } from 'node:fs'
import { join } from 'node:path'
import t, { type Test } from 'tap'
import { createAgentKey } from '../../src/proxy/http/access/agent-key.ts'
import { hasPython, installFromPyPI } from '../agents/parts/install.ts'
import { runProgram } from '../agents/parts/programs.ts'
import { KEYS } from '../helpers/keys.ts'
import { startProxy } from '../helpers/proxy.ts'
import { IS_FULL } from '../helpers/tier.ts'

/** The generated requests change from version to version. */
const VERSION = '4.32.5'
const CHECKS = [
  'not_a_server_error',
  'status_code_conformance',
  'content_type_conformance',
  'response_headers_conformance',
  'response_schema_conformance',
  'ignored_auth',
]
const EXAMPLES_PER_ROUTE = IS_FULL ? 8 : 1
/** Far more than a run takes. */
const LIMIT_MS = IS_FULL ? 540_000 : 240_000

/** Endless responses. */
const STREAMS = ['getEvents', 'getSessionsBySessionIdLive']
/** Routes after which LLM requests wait for an engine: they are tested on a separate proxy. */
const DISRUPTIVE = ['postAdminPause', 'postAdminWorkers', 'deleteAdminWorkersByWorkerId']

const SESSION = 'of-the-agent'
const OPEN = undefined
const AGENT_KEY = createAgentKey(KEYS.agentKeySecrets[0]!, SESSION)
const CALLERS: Record<string, string | undefined> = {
  'a client of an open proxy': OPEN,
  'an agent': AGENT_KEY,
  ...(IS_FULL && {
    'an admin': KEYS.adminKeys[0],
    'a viewer': KEYS.viewKeys[0],
    monitoring: KEYS.metricsKeys[0],
  }),
}

/** Without this, waiting for a session takes the maximum time. */
const CONFIG = `
[[operations]]
include-operation-id = "getSessionsBySessionIdWait"
parameters = { timeout_s = 0.05 }
`

async function runSchemathesis(
  t: Test,
  environment: string,
  key: string | undefined,
  only: readonly string[],
) {
  const folder = t.testdir({})
  const proxy = await startProxy(t, {
    db: 'memory',
    tokenizer: 'embedded',
    // Bounds the completions of requests without a limit.
    contextLength: 256,
    ...(key !== undefined && KEYS),
  })
  if (key !== undefined) await proxy.post(`/sessions/${SESSION}`)
  const document = join(folder, 'openapi.json')
  writeFileSync(document, JSON.stringify(await proxy.get('/openapi.json')))
  const config = join(folder, 'schemathesis.toml')
  const session = `[parameters]\n"path.sessionId" = "${SESSION}"\n`
  writeFileSync(config, (key === AGENT_KEY ? session : '') + CONFIG)
  const chosen = only.length > 0 ? only.map((id) => ['--include-operation-id', id]) : exclude()
  const args = [
    join(environment, 'bin/schemathesis'),
    ...['--config-file', config, 'run', document, '--url', proxy.url, '--no-color'],
    ...['--phases', 'fuzzing', '--max-examples', String(EXAMPLES_PER_ROUTE), '--no-shrink'],
    ...['--generation-deterministic', '--warnings', 'off'],
    ...['--checks', CHECKS.join(), '--continue-on-failure', ...chosen.flat()],
    ...(key === undefined ? [] : ['--header', `Authorization: Bearer ${key}`]),
  ]
  const { code, output } = await runProgram(
    { command: join(environment, 'bin/python'), args, cwd: folder, env: process.env },
    LIMIT_MS,
  )
  t.equal(code, 0, output)
  t.match(output, /\d+ generated, \d+ passed|No issues found/)
  t.equal((await fetch(`${proxy.url}/health`)).status, 200, 'the proxy is healthy')
}

function exclude(): string[][] {
  return [...STREAMS, ...DISRUPTIVE].map((id) => ['--exclude-operation-id', id])
}

if (!(await hasPython())) t.pass('schemathesis is not run', { skip: 'there is no python3 with venv' })
else {
  const installed = await installFromPyPI('schemathesis', [], { pinned: VERSION }).catch(
    (error: Error) => error,
  )
  if (installed instanceof Error) t.pass('schemathesis is not run', { skip: installed.message })
  else {
    const { folder } = installed
    for (const [name, key] of Object.entries(CALLERS)) {
      t.test(`responses to ${name} conform to openapi.json`, async (t) => {
        await runSchemathesis(t, folder, key, [])
      })
    }
    t.test('so do those of the routes that pause the proxy and change its engines', async (t) => {
      await runSchemathesis(t, folder, OPEN, DISRUPTIVE)
    })
  }
}
