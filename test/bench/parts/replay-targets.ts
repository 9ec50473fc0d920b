/** The common parts of rows that replay sessions: the targets, and the process of the agents. */
import { once } from 'node:events'
import { join } from 'node:path'
import type { Bench } from '../rows/row.ts'
import type { Child, Children } from './children.ts'
import type { ReplayJob, ReplayResult } from './replay-job.ts'
import { startEngine } from './start-engine.ts'
import { createDatabase, isTokenMode, type TargetName, Targets, untilConnected } from './targets.ts'
import { TOKEN_MODEL } from './token-model.ts'

/** The only path of all targets but ours: they pass bytes through to the engine. */
const ENGINE_PATH = '/v1/chat/completions'
/** The first requests of hundreds of agents may take long. */
const PATIENCE_MS = 180_000

export interface ReplayTarget {
  name: TargetName
  baseUrl: string
  path?: string
  /** The proxy or pass-through, and in relay mode its worker. */
  pids: number[]
}

/** Starts the chosen targets except `parse`, which accepts only what `pipe` does. */
export async function startTargets(
  bench: Bench,
  children: Children,
  row: string,
  args: string[] = [],
): Promise<ReplayTarget[]> {
  const started: ReplayTarget[] = []
  const isRequested = bench.targetNames.some(isTokenMode)
  const tokenEngine = isRequested
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
        await untilConnected(proxy.url, 1)
      }
      started.push({ name, baseUrl: `${proxy.url}/{session}`, pids })
    } else if (name !== 'parse') {
      const { url, pid } = await targets.start(name, options)
      const pids = pid === undefined ? [] : [pid]
      started.push({ name, baseUrl: url.slice(0, -ENGINE_PATH.length), path: ENGINE_PATH, pids })
    }
  }
  return started
}

/** Starts a separate process, because the agents' work must not count. */
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
  const signal = AbortSignal.timeout(warmUpMs + job.durationMs + PATIENCE_MS)
  process.send(job)
  const [result] = (await once(process, 'message', { signal })) as [ReplayResult]
  if (result.failures === 0) return result
  throw new Error(
    `${result.failures} of ${result.turns} turns at ${job.baseUrl} failed: ${result.firstFailure}`,
  )
}
