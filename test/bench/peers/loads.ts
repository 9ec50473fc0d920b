/** The three loads of all peers, each in front of a new process. */
import { mkdirSync } from 'node:fs'
import { join } from 'node:path'
import { type Child, Children } from '../parts/children.ts'
import type { LoadGenerator } from '../parts/load-generator.ts'
import { countDescendants, getRssMib } from '../parts/proc-stat.ts'
import { runReplay } from '../parts/replay-targets.ts'
import { computeSpread } from '../parts/statistics.ts'
import { formatFigure, renderTable } from '../parts/table.ts'
import { CHAT_PATH } from '../parts/targets.ts'
import type { Peer, PeerInstance } from './catalog.ts'

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

interface Figures {
  cpuMs: number
  p50Ms: number
  p99Ms: number
  rssMib: number
  requests: number
  /** The number of child processes, which are not measured. */
  otherProcesses: number
}

const REQUESTS_PER_SESSION = 20
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
type LoadName = keyof typeof LOADS
export const LOAD_NAMES = Object.keys(LOADS) as LoadName[]

export async function measure(stage: Stage, peer: Peer, load: LoadName, run: number): Promise<Figures> {
  const folder = join(stage.folder, `${peer.name}-${load}-${run}`)
  mkdirSync(folder, { recursive: true })
  await using children = new Children()
  const instance = await peer.start({ children, engineUrl: stage.engineUrl, folder })
  const { pid } = instance.child
  const figures = await (load === 'replay'
    ? replay(stage, instance)
    : sendRequests(stage, instance, SHAPES[load]))
  const measured = { ...figures, rssMib: getRssMib(pid), otherProcesses: countDescendants(pid) }
  // Its shutdown is not measured, and may take long.
  await children.kill(instance.child)
  return measured
}

async function sendRequests(
  stage: Stage,
  { child, baseUrl, headers = {} }: PeerInstance,
  shape: (typeof SHAPES)['small' | 'large'],
) {
  const { durationMs, warmUpMs, concurrency } = stage
  const result = await stage.load.run({
    ...{ url: baseUrl + CHAT_PATH, headers, ...shape, concurrency, durationMs, warmUpMs },
    requestsPerSession: REQUESTS_PER_SESSION,
    watchPid: child.pid,
  })
  return {
    cpuMs: result.cpuMsPerRequest,
    p50Ms: result.p50Ms,
    p99Ms: result.p99Ms,
    requests: result.requests,
  }
}

async function replay(stage: Stage, { child, baseUrl, headers = {} }: PeerInstance) {
  const { durationMs, warmUpMs, concurrency, replayer } = stage
  const job = { baseUrl, path: CHAT_PATH, headers, ...REPLAY, concurrency, durationMs, warmUpMs }
  const result = await runReplay(replayer, { ...job, watchPids: [child.pid] })
  const [cpuMs = Number.NaN] = result.cpuMsPerTurn
  return { cpuMs, p50Ms: result.p50Ms, p99Ms: result.p99Ms, requests: result.turns }
}

export interface Cell {
  load: LoadName
  peer: string
  /** One entry per run; empty if the peer cannot run on this machine. */
  runs: Figures[]
}

/** Renders the medians of the runs. */
export function renderLoads(cells: readonly Cell[]): string {
  const head = [
    'load',
    'in the middle',
    'CPU ms/request',
    'min–max',
    'of pipe',
    'p50 ms',
    'p99 ms',
    'RSS MiB',
    'requests',
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
        formatFigure(cpu.median),
        `${formatFigure(cpu.min)}–${formatFigure(cpu.max)}`,
        `${formatFigure(cpu.median / computeSpread(pipe.map(({ cpuMs }) => cpuMs)).median)} ×`,
        formatFigure(spread('p50Ms').median),
        formatFigure(spread('p99Ms').median),
        formatFigure(spread('rssMib').median),
        formatFigure(spread('requests').median),
      ]
    })
  return renderTable(head, rows)
}
