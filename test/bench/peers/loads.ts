/** The three loads of all peers, each in front of a new process. */
import { mkdirSync } from 'node:fs'
import { join } from 'node:path'
import { type Child, Children } from '../parts/children.ts'
import type { LoadGenerator } from '../parts/load.ts'
import { countDescendants, rssMib } from '../parts/proc-stat.ts'
import { runReplay } from '../parts/replay-targets.ts'
import { computeSpread } from '../parts/statistics.ts'
import { figure, table } from '../parts/table.ts'
import type { Peer, Started } from './catalog.ts'

export const CALL_PATH = '/v1/chat/completions'

export interface Stage {
  engineUrl: string
  load: LoadGenerator
  replayer: Child
  /** The folder for databases, which is deleted at the end. */
  folder: string
  durationMs: number
  warmUpMs: number
  concurrency: number
}

export interface Figures {
  cpuMs: number
  p50Ms: number
  p99Ms: number
  rssMib: number
  calls: number
  /** The number of child processes, which are not measured. */
  otherProcesses: number
}

const CALLS_PER_SESSION = 20
const REPLAY = { dialect: 'chat', shape: { kind: 'claude-code' } } as const
/** The same shapes as in the rows of these names. */
const SHAPES = {
  small: { bodyBytes: 1_000, growthBytes: 0, stream: false, maxTokens: 32 },
  large: { bodyBytes: 140_000, growthBytes: 1_500, stream: false, maxTokens: 100 },
} as const
const LOADS = {
  small: '1 KB request, 32-token response',
  large: '160 KB request, 100-token response',
  replay: 'replayed Claude Code sessions, streamed',
} as const
export type LoadName = keyof typeof LOADS
export const LOAD_NAMES = Object.keys(LOADS) as LoadName[]

export async function measure(stage: Stage, peer: Peer, load: LoadName, run: number): Promise<Figures> {
  const folder = join(stage.folder, `${peer.name}-${load}-${run}`)
  mkdirSync(folder, { recursive: true })
  await using children = new Children()
  const started = await peer.start({ children, engineUrl: stage.engineUrl, folder })
  const { pid } = started.child
  const figures = await (load === 'replay' ? replay(stage, started) : calls(stage, started, SHAPES[load]))
  const measured = { ...figures, rssMib: rssMib(pid), otherProcesses: countDescendants(pid) }
  // Its shutdown is not measured, and may take long.
  await children.kill(started.child)
  return measured
}

async function calls(
  stage: Stage,
  { child, baseUrl, headers = {} }: Started,
  shape: (typeof SHAPES)['small' | 'large'],
) {
  const { durationMs, warmUpMs, concurrency } = stage
  const result = await stage.load.run({
    ...{ url: baseUrl + CALL_PATH, headers, ...shape, concurrency, durationMs, warmUpMs },
    callsPerSession: CALLS_PER_SESSION,
    watchPid: child.pid,
  })
  return { cpuMs: result.cpuMsPerCall, p50Ms: result.p50Ms, p99Ms: result.p99Ms, calls: result.calls }
}

async function replay(stage: Stage, { child, baseUrl, headers = {} }: Started) {
  const { durationMs, warmUpMs, concurrency, replayer } = stage
  const job = { baseUrl, path: CALL_PATH, headers, ...REPLAY, concurrency, durationMs, warmUpMs }
  const result = await runReplay(replayer, { ...job, watchPids: [child.pid] })
  const [cpuMs = Number.NaN] = result.cpuMsPerTurn
  return { cpuMs, p50Ms: result.p50Ms, p99Ms: result.p99Ms, calls: result.turns }
}

export interface Cell {
  load: LoadName
  peer: string
  /** One entry per run; empty if the peer does not start here. */
  runs: Figures[]
}

/** Renders the medians of the runs. */
export function loadsTable(cells: readonly Cell[]): string {
  const head = [
    'load',
    'in the middle',
    'CPU ms/request',
    'min–max',
    'of pipe',
    'p50 ms',
    'p99 ms',
    'RSS MiB',
    'calls',
  ]
  const rows = cells
    .filter(({ runs }) => runs.length > 0)
    .map(({ load, peer, runs }) => {
      const spread = (name: keyof Figures) => computeSpread(runs.map((run) => run[name]))
      const cpu = spread('cpuMs')
      const pipe = cells.find((cell) => cell.load === load && cell.peer === 'pipe')?.runs ?? []
      const others = Math.max(...runs.map(({ otherProcesses }) => otherProcesses))
      return [
        LOADS[load],
        others === 0 ? peer : `${peer} (and ${others} processes that are not measured)`,
        figure(cpu.median),
        `${figure(cpu.min)}–${figure(cpu.max)}`,
        `${figure(cpu.median / computeSpread(pipe.map(({ cpuMs }) => cpuMs)).median)} ×`,
        figure(spread('p50Ms').median),
        figure(spread('p99Ms').median),
        figure(spread('rssMib').median),
        figure(spread('calls').median),
      ]
    })
  return table(head, rows)
}
