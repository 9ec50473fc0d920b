/**
 * Real shapes of Claude Code sessions, replayed by many agents at once in three dialects; and the same by the size of the
 * prompt, so that it shows whether a turn costs what is new in it or what is old.
 */
import { type Child, Children } from '../parts/children.ts'
import { rssMib } from '../parts/proc-stat.ts'
import type { ReplayDialect, ReplayJob, ReplayResult, Shape } from '../parts/replay-job.ts'
import { type ReplayTarget, runReplay, startReplayer, startTargets } from '../parts/replay-targets.ts'
import { type Spread, spreadOf } from '../parts/statistics.ts'
import { figure, table } from '../parts/table.ts'
import type { TargetName } from '../parts/targets.ts'
import type { Aim, Bench, Row } from './row.ts'

const FULL = { rounds: 3, durationMs: 3_000, warmUpMs: 3_000 }
const QUICK = { rounds: 1, durationMs: 100, warmUpMs: 0 }
/** Enough to see that a row works. */
const QUICK_AGENTS = 4

interface Load {
  title: string
  dialect: ReplayDialect
  shape: Shape
  concurrency: number
}

interface Cell {
  load: Load
  target: ReplayTarget
  results: ReplayResult[]
  rssMib: number
}

const REAL: Shape = { kind: 'claude-code' }
const REPLAYED: Load[] = [
  ...[16, 64, 192].map((concurrency) => ({
    title: 'Messages',
    dialect: 'messages' as const,
    shape: REAL,
    concurrency,
  })),
  { title: 'Chat', dialect: 'chat', shape: REAL, concurrency: 16 },
  { title: 'Responses', dialect: 'responses', shape: REAL, concurrency: 16 },
  {
    title: 'Messages, main and sub-agent by turns',
    dialect: 'messages',
    shape: { kind: 'sub-agent', promptTokens: 50_000 },
    concurrency: 16,
  },
]
const BY_SIZE: Load[] = [10_000, 50_000, 100_000, 200_000].map((promptTokens) => ({
  title: `Messages, prompts of ${promptTokens / 1000}k tokens`,
  dialect: 'messages',
  shape: { kind: 'steady', promptTokens },
  concurrency: 16,
}))

export const replay: Row = replayRow('replay', 'Replayed sessions of Claude Code, streamed', REPLAYED)
export const bySize: Row = replayRow('by-size', 'Turns by the size of their prompt', BY_SIZE)

function replayRow(row: string, title: string, loads: Load[]): Row {
  return async (bench) => {
    await using children = new Children()
    const targets = await startTargets(bench, children, row)
    const replayer = await startReplayer(children)
    const chosen = bench.quick
      ? loads.filter(isSmallest).map((load) => ({ ...load, concurrency: QUICK_AGENTS }))
      : loads
    const cells = await measure(bench, replayer, chosen, targets)
    const figures = cells.map(({ load, target, results, rssMib: rss }) => ({
      ...{ load: load.title, concurrency: load.concurrency, target: target.name, rssMib: rss },
      ...figuresOf(results),
    }))
    return { row, report: `### ${title}\n\n${reportOf(figures)}`, aims: aimsOf(figures), figures }
  }
}

/** The first of those that differ in their agents alone. */
function isSmallest({ title }: Load, at: number, all: readonly Load[]): boolean {
  return all.findIndex((other) => other.title === title) === at
}

type Figures = ReturnType<typeof figuresOf> & {
  load: string
  concurrency: number
  target: TargetName
  rssMib: number
}

async function measure(
  { quick }: Bench,
  replayer: Child,
  loads: Load[],
  targets: ReplayTarget[],
): Promise<Cell[]> {
  const { rounds, durationMs, warmUpMs } = quick ? QUICK : FULL
  const cells = loads.flatMap((load) =>
    targets.map((target): Cell => ({ load, target, results: [], rssMib: 0 })),
  )
  for (let round = 0; round < rounds; round += 1) {
    for (const cell of cells) {
      const { dialect, shape, concurrency } = cell.load
      const { baseUrl, path, pids: watchPids } = cell.target
      const job: ReplayJob = { baseUrl, dialect, shape, concurrency, durationMs, warmUpMs, watchPids }
      cell.results.push(await runReplay(replayer, path === undefined ? job : { ...job, path }))
      const [pid] = watchPids
      if (pid !== undefined) cell.rssMib = Math.max(cell.rssMib, rssMib(pid))
    }
  }
  return cells
}

function figuresOf(results: readonly ReplayResult[]) {
  const spread = (of: (result: ReplayResult) => number): Spread => spreadOf(results.map(of))
  return {
    turnsPerSecond: spread((result) => result.turnsPerSecond),
    inputTokensPerSecond: spread((result) => result.inputTokensPerSecond),
    p50Ms: spread((result) => result.p50Ms),
    p99Ms: spread((result) => result.p99Ms),
    cpuMs: spread((result) => result.cpuMsPerTurn[0] ?? Number.NaN),
    workerCpuMs: spread((result) => result.cpuMsPerTurn[1] ?? Number.NaN),
  }
}

/** CPU time of the same load through another target. */
function cpuOf(target: TargetName, all: readonly Figures[], { load, concurrency }: Figures): number {
  const there = all.find(
    (one) => one.target === target && one.load === load && one.concurrency === concurrency,
  )
  return there?.cpuMs.median ?? Number.NaN
}

function reportOf(all: readonly Figures[]): string {
  const head = ['load', 'agents', 'target', 'turns/s', 'min–max', 'tokens in/s', 'p50 ms', 'p99 ms']
  const rows = all.map((one) => [
    one.load,
    String(one.concurrency),
    one.target,
    figure(one.turnsPerSecond.median),
    `${figure(one.turnsPerSecond.min)}–${figure(one.turnsPerSecond.max)}`,
    figure(one.inputTokensPerSecond.median),
    figure(one.p50Ms.median),
    figure(one.p99Ms.median),
    figure(one.cpuMs.median),
    `${figure(one.cpuMs.median / cpuOf('pipe', all, one))} ×`,
    `${figure(one.cpuMs.median / cpuOf('pipe+ids', all, one))} ×`,
    figure(one.workerCpuMs.median),
    figure(one.rssMib),
  ])
  return table([...head, 'CPU ms/turn', 'of pipe', 'of pipe+ids', 'worker CPU ms', 'RSS MiB'], rows)
}

const MOST_OF_PIPE = 3

function aimsOf(all: readonly Figures[]): Aim[] {
  const ours = all.filter(({ target }) => target === 'local' || target === 'relay')
  return ours.flatMap((one) => {
    const ratio = one.cpuMs.median / cpuOf('pipe', all, one)
    if (Number.isNaN(ratio)) return []
    const what = `${one.target}: ${one.load}, ${one.concurrency} agents, CPU of the pass-through's`
    const measured = `${figure(ratio)} times`
    return [{ what, wanted: `at most ${MOST_OF_PIPE} times`, measured, met: ratio <= MOST_OF_PIPE }]
  })
}
