/** Starts a proxy from the command line, as users do, with an embedded engine that follows a script. */
import { writeFileSync } from 'node:fs'
import { join } from 'node:path'
import type { Test } from 'tap'
import { startChild, waitForExit, waitForOutput } from '../../helpers/children.ts'
import { startEffortCheck, writeModelWithEfforts } from '../../helpers/effort-rules.ts'
import { startLlmProxy } from '../../helpers/llm-proxy.ts'
import { IS_FULL } from '../../helpers/tier.ts'

/** Every route from an agent to an engine. */
const ROUTES: readonly Setup[] = (['local', 'relay'] as const).flatMap((mode) =>
  (['chat', 'token'] as const).map((prompts) => ({ mode, prompts })),
)
export interface Setup {
  mode: 'local' | 'relay'
  prompts: 'chat' | 'token'
  /** The executable of the proxy. Default: the checkout. */
  executable?: string
}

/** Each mode and each kind of prompt once, for agents whose dialect other tests cover in every setup. */
export const TWO_SETUPS: readonly Setup[] = [
  { mode: 'local', prompts: 'chat' },
  { mode: 'relay', prompts: 'token' },
]

/** Every route under FULL; otherwise two of them, and the other two in `OTHER_SETUPS`. */
export const SETUPS = IS_FULL ? ROUTES : TWO_SETUPS
export const OTHER_SETUPS = IS_FULL
  ? ROUTES
  : ROUTES.filter(({ mode, prompts }) => (mode === 'local') === (prompts === 'token'))

/** For agents that send the same requests as others: the second setup, under FULL both. */
export const ONE_SETUP = IS_FULL ? TWO_SETUPS : TWO_SETUPS.slice(1)

// biome-ignore lint/suspicious/noExplicitAny: tests inspect responses of any shape
type Json = any

export interface Rig {
  url: string
  get(path: string): Promise<Json>
  /** Creates a session. @returns the agent's key; on a proxy without keys any text */
  createSession(sessionId: string): Promise<string>
}

export interface RigOptions extends Setup {
  playbook: object
  /** The folder for the rig's files. */
  folder: string
  /** Context length of the engine; agents have long prompts and request long completions. */
  contextLength?: number
  /** Flags of the proxy. */
  flags?: readonly string[]
  /** The proxy requires keys. */
  requiresKeys?: boolean
  /** Starts a server between the proxy and the engine. @returns its URL */
  startForwarder?: (t: Test, engineUrl: string) => Promise<string>
  /** The model rejects efforts as Qwen3.8 does: its template in token mode, its engine in chat mode. */
  checksEfforts?: boolean
}

const LARGE_CONTEXT = 1_000_000
const ADMIN_KEY = 'admin-key-of-a-test'
const WORKER_KEY = 'worker-key-of-a-test'
const KEY_FLAGS = [
  ...['--admin-key', ADMIN_KEY, '--worker-key', WORKER_KEY],
  ...['--agent-key-secret', 'agent-key-secret-of-a-test'],
]

/** Starts engine, proxy and worker; they stop when the test ends. */
export async function startRig(t: Test, options: RigOptions): Promise<Rig> {
  const { mode, prompts, folder, contextLength = LARGE_CONTEXT, flags = [], checksEfforts = false } = options
  const { requiresKeys = false, startForwarder, executable } = options
  const playbook = join(folder, 'playbook.json')
  writeFileSync(playbook, JSON.stringify(options.playbook))
  const length = ['--context-length', String(contextLength)]
  const embeddedUrl = await serve(t, ['engine', '--port', '0', '--playbook', playbook, ...length])
  const checkedUrl = checksEfforts ? (await startEffortCheck(t, embeddedUrl)).url : embeddedUrl
  const engineUrl = startForwarder === undefined ? checkedUrl : await startForwarder(t, checkedUrl)
  const model = checksEfforts ? join(folder, 'model') : 'embedded'
  if (checksEfforts) writeModelWithEfforts(model)
  const proxyArgs = [
    ...['serve', '--port', '0', '--db', join(folder, 'proxy.db'), '--mode', mode],
    // Agents request the models of their vendors.
    ...['--model', 'embedded'],
    ...(mode === 'local' ? ['--engine-url', engineUrl] : []),
    ...(prompts === 'token' ? ['--tokenizer', model, ...length] : []),
    ...(requiresKeys ? KEY_FLAGS : []),
    ...flags,
  ]
  const url = await serve(t, proxyArgs, executable)
  const workerKey = requiresKeys ? ['--worker-key', WORKER_KEY] : []
  if (mode === 'relay')
    await start(t, ['worker', '--proxy-url', url, '--engine-url', engineUrl, ...workerKey])
  const headers: Record<string, string> = requiresKeys ? { authorization: `Bearer ${ADMIN_KEY}` } : {}
  return {
    url,
    get: async (path) => (await fetch(url + path, { headers })).json(),
    async createSession(sessionId) {
      if (!requiresKeys) return 'none'
      const created = await fetch(`${url}/sessions/${sessionId}`, { method: 'POST', headers })
      return ((await created.json()) as { agent_key: string }).agent_key
    },
  }
}

async function serve(t: Test, args: string[], executable?: string): Promise<string> {
  const [url] = await start(t, args, /http:\/\/[\d.]+:\d+/, executable)
  return url!
}

/** Waits for the line that a command writes to stdout when it is ready. */
async function start(t: Test, args: string[], ready = /\n/, executable?: string): Promise<RegExpExecArray> {
  const all = [...args, '--log-level', 'error']
  const child = executable === undefined ? startLlmProxy(all) : startChild(executable, all)
  child.stderr.setEncoding('utf8').on('data', (text: string) => t.comment(text))
  t.teardown(() => {
    child.kill('SIGKILL')
    return waitForExit(child)
  })
  return waitForOutput(child.stdout, ready)
}
