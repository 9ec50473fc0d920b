/** Targets and agents of rows that replay sessions. */
import { once } from 'node:events'
import { join } from 'node:path'
import type { Bench } from '../rows/row.ts'
import type { Child, Children } from './children.ts'
import type { ReplayJob, ReplayResult } from './replay-job.ts'
import { startEngine } from './start-engine.ts'
import {
  CHAT_PATH,
  createDatabase,
  isTokenMode,
  type TargetName,
  Targets,
  waitForWorkers,
} from './targets.ts'
import { TOKEN_MODEL } from './token-model.ts'

/** The first requests of hundreds of agents may take long. */
const END_TIMEOUT_MS = 180_000

export interface ReplayTarget {
  name: TargetName
  baseUrl: string
  path?: string
  /** The proxy or pass-through, and in relay mode its worker. */
  pids: number[]
}

/**
 * Starts the chosen targets except `parse`, which accepts only what `pipe` does. All targets but llm-proxy forward one
 * path.
 */
export async function startTargets(
  bench: Bench,
  children: Children,
  row: string,
  args: string[] = [],
): Promise<ReplayTarget[]> {
  const started: ReplayTarget[] = []
  const usesTokenMode = bench.targetNames.some(isTokenMode)
  const tokenEngine = usesTokenMode
    ? await startEngine(children, { tokenizer: TOKEN_MODEL, eventsPerWrite: bench.eventsPerWrite })
    : undefined
  for (const name of bench.targetNames) {
    const { cpuProfileFolder } = bench
    const isToken = isTokenMode(name)
    const targets = new Targets(children, isToken ? tokenEngine!.url : bench.engineUrl)
    const options = {
      db: await createDatabase(bench, row, name),
      cpuProfileFolder,
      args: isToken ? [...args, '--tokenizer', TOKEN_MODEL] : args,
    }
    if (isToken || name.startsWith('local') || name === 'relay') {
      const isLocal = name.startsWith('local')
      const proxy = await (isLocal ? targets.startLocal(options) : targets.startRelayWithoutWorkers(options))
      const pids = [proxy.pid]
      if (!isLocal) {
        pids.push((await targets.startWorker(proxy.url, 'replay-1')).pid)
        await waitForWorkers(proxy.url, 1)
      }
      started.push({ name, baseUrl: `${proxy.url}/{session}`, pids })
    } else if (name !== 'parse') {
      const { url, pid } = await targets.start(name, options)
      const pids = pid === undefined ? [] : [pid]
      started.push({ name, baseUrl: url.slice(0, -CHAT_PATH.length), path: CHAT_PATH, pids })
    }
  }
  return started
}

/** Starts the agents in a separate process, because their work must not count. */
export function startReplayer(children: Children): Promise<Child> {
  const script = join(import.meta.dirname, '../processes/replayer.ts')
  return children.start({ name: 'replayer', args: [script], silent: true, ipc: true })
}

/**
 * Runs a job.
 * @throws Error if a request failed: the figures would be meaningless
 */
export async function runReplay({ process }: Child, job: ReplayJob): Promise<ReplayResult> {
  const warmUpMs = job.warmUpMs === 'crowd' ? 0 : job.warmUpMs
  const signal = AbortSignal.timeout(warmUpMs + job.durationMs + END_TIMEOUT_MS)
  process.send(job)
  const [result] = (await once(process, 'message', { signal })) as [ReplayResult]
  if (result.failures === 0) return result
  throw new Error(
    `${result.failures} of ${result.turns} turns at ${job.baseUrl} failed: ${result.firstFailure}`,
  )
}
