/**
 * Real shapes of Claude Code sessions, replayed by many agents at once in three dialects; and the same by the size of
 * the prompt, which shows whether a turn's cost depends on its new or its old part. In token mode, agents send the same
 * texts, and the engine samples what they echo.
 */
import { type Child, Children } from '../parts/children.ts'
import { getRssMib } from '../parts/proc-stat.ts'
import type { ReplayDialect, ReplayJob, ReplayResult, Shape } from '../parts/replay-job.ts'
import { type ReplayTarget, runReplay, startReplayer, startTargets } from '../parts/replay-targets.ts'
import { computeSpread, type Spread } from '../parts/statistics.ts'
import { formatFigure, renderTable } from '../parts/table.ts'
import { isTokenMode, type TargetName } from '../parts/targets.ts'
import { formatThreadFigures, THREAD_TITLES } from '../parts/thread-figures.ts'
import type { Aim, Bench, Row } from './row.ts'

const FULL = { rounds: 3, durationMs: 3_000, warmUpMs: 3_000 }
const QUICK = { rounds: 1, durationMs: 100, warmUpMs: 0 }
/** Enough to check that a row works. */
const QUICK_AGENTS = 4

interface Load {
  title: string
  dialect: ReplayDialect
  shape: Shape
  concurrency: number
  /** Whether the load is also measured in token mode. */
  inTokenMode?: boolean
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
    inTokenMode: concurrency < 192,
  })),
  { title: 'Chat', dialect: 'chat', shape: REAL, concurrency: 16 },
  { title: 'Responses', dialect: 'responses', shape: REAL, concurrency: 16 },
  {
    title: 'Messages, main agent and subagent in turn',
    dialect: 'messages',
    shape: { kind: 'sub-agent', promptTokens: 50_000 },
    concurrency: 16,
    inTokenMode: true,
  },
]
const BY_SIZE: Load[] = [
  ...[10_000, 50_000, 100_000, 200_000].map((promptTokens) => createLoadBySize(promptTokens, 16)),
  // Each request has 4 MB.
  createLoadBySize(1_000_000, 4),
]

export const replay: Row = createReplayRow('replay', 'Replayed sessions of Claude Code, streamed', REPLAYED)
export const bySize: Row = createReplayRow('by-size', 'Turns by the size of their prompt', BY_SIZE)

function createLoadBySize(promptTokens: number, concurrency: number): Load {
  return {
    title: `Messages, prompts of ${promptTokens / 1000}k tokens`,
    dialect: 'messages',
    shape: { kind: 'steady', promptTokens },
    concurrency,
    inTokenMode: true,
  }
}

function createReplayRow(row: string, title: string, loads: Load[]): Row {
  return async (bench) => {
    await using children = new Children()
    const targets = await startTargets(bench, children, row)
    const replayer = await startReplayer(children)
    const selected = loads.filter((load) => getName(load).includes(bench.loads))
    const chosen = bench.quick
      ? selected.filter(isSmallest).map((load) => ({ ...load, concurrency: QUICK_AGENTS }))
      : selected
    const cells = await measure(bench, replayer, chosen, targets)
    const figures = cells.map(({ load, target, results, rssMib: rss }) => ({
      ...{ load: load.title, concurrency: load.concurrency, target: target.name, rssMib: rss },
      ...computeFigures(results),
    }))
    const prompts = await Promise.all(targets.filter(({ name }) => isTokenMode(name)).map(describePrompts))
    const parts = [`### ${title}`, renderReport(figures), renderThreads(figures), ...prompts]
    return { row, report: parts.join('\n\n'), aims: getAims(figures), figures }
  }
}

/** Returns the name of a load for `--loads`. */
function getName({ title, concurrency }: Load): string {
  return `${title}, ${concurrency} agents`
}

/**
 * Describes how the prompts of token mode were built.
 * @throws Error if no prompt extended another one, or the engine reported other prompts: figures would be meaningless
 */
async function describePrompts({ name, baseUrl }: ReplayTarget): Promise<string> {
  const health = await fetch(new URL('/health', baseUrl))
  const { prompts } = (await health.json()) as { prompts: Record<string, number> }
  const report = `prompts of ${name}: ${JSON.stringify(prompts)}`
  if (!prompts.extended || prompts.mismatched) throw new Error(report)
  return report
}

/** Returns whether a load is the first of those that differ only in the number of agents. */
function isSmallest({ title }: Load, index: number, all: readonly Load[]): boolean {
  return all.findIndex((other) => other.title === title) === index
}

type Figures = ReturnType<typeof computeFigures> & {
  load: string
  concurrency: number
  target: TargetName
  rssMib: number
}

async function measure(
  { quick, rounds: requestedRounds }: Bench,
  replayer: Child,
  loads: Load[],
  targets: ReplayTarget[],
): Promise<Cell[]> {
  const { durationMs, warmUpMs, ...plan } = quick ? QUICK : FULL
  const rounds = requestedRounds ?? plan.rounds
  const cells = loads.flatMap((load) =>
    targets
      .filter(({ name }) => load.inTokenMode || !isTokenMode(name))
      .map((target): Cell => ({ load, target, results: [], rssMib: 0 })),
  )
  for (let round = 0; round < rounds; round += 1) {
    for (const cell of cells) {
      const { dialect, shape, concurrency } = cell.load
      const { baseUrl, path, pids: watchPids } = cell.target
      const job: ReplayJob = { baseUrl, dialect, shape, concurrency, durationMs, warmUpMs, watchPids }
      cell.results.push(await runReplay(replayer, path === undefined ? job : { ...job, path }))
      const [pid] = watchPids
      if (pid !== undefined) cell.rssMib = Math.max(cell.rssMib, getRssMib(pid))
    }
  }
  return cells
}

function computeFigures(results: readonly ReplayResult[]) {
  const spread = (of: (result: ReplayResult) => number): Spread => computeSpread(results.map(of))
  return {
    turnsPerSecond: spread((result) => result.turnsPerSecond),
    inputTokensPerSecond: spread((result) => result.inputTokensPerSecond),
    p50Ms: spread((result) => result.p50Ms),
    p99Ms: spread((result) => result.p99Ms),
    cpuMs: spread((result) => result.cpuMsPerTurn[0] ?? Number.NaN),
    workerCpuMs: spread((result) => result.cpuMsPerTurn[1] ?? Number.NaN),
    threadCpuMs: Object.fromEntries(
      getThreadNames(results).map((name) => [
        name,
        spread((result) => result.threadCpuMsPerTurn[name] ?? 0).median,
      ]),
    ),
  }
}

function getThreadNames(results: readonly ReplayResult[]): string[] {
  return [...new Set(results.flatMap((result) => Object.keys(result.threadCpuMsPerTurn)))]
}

/** Returns the CPU time of the same load through another target. */
function findCpuMs(target: TargetName, all: readonly Figures[], { load, concurrency }: Figures): number {
  const other = all.find(
    (one) => one.target === target && one.load === load && one.concurrency === concurrency,
  )
  return other?.cpuMs.median ?? Number.NaN
}

function renderReport(all: readonly Figures[]): string {
  const head = ['load', 'agents', 'target', 'turns/s', 'min–max', 'tokens in/s', 'p50 ms', 'p99 ms']
  const rows = all.map((one) => [
    one.load,
    String(one.concurrency),
    one.target,
    formatFigure(one.turnsPerSecond.median),
    `${formatFigure(one.turnsPerSecond.min)}–${formatFigure(one.turnsPerSecond.max)}`,
    formatFigure(one.inputTokensPerSecond.median),
    formatFigure(one.p50Ms.median),
    formatFigure(one.p99Ms.median),
    formatFigure(one.cpuMs.median),
    `${formatFigure(one.cpuMs.median / findCpuMs('pipe', all, one))} ×`,
    `${formatFigure(one.cpuMs.median / findCpuMs('pipe+ids', all, one))} ×`,
    `${formatFigure(one.cpuMs.median / findCpuMs('floor', all, one))} ×`,
    formatFigure(one.workerCpuMs.median),
    formatFigure(one.rssMib),
  ])
  return renderTable(
    [...head, 'CPU ms/turn', 'of pipe', 'of pipe+ids', 'of floor', 'worker CPU ms', 'RSS MiB'],
    rows,
  )
}

function renderThreads(all: readonly Figures[]): string {
  const rows = all.map(({ load, concurrency, target, threadCpuMs }) => {
    return [load, String(concurrency), target, ...formatThreadFigures(threadCpuMs)]
  })
  const head = ['CPU ms/turn by thread', 'agents', 'target', ...THREAD_TITLES]
  return renderTable(head, rows)
}

/** The limits of the aims. */
const MAX_RATIO_TO_PIPE = 3
const MAX_RATIO_IN_TOKEN_MODE = 4

function getAims(all: readonly Figures[]): Aim[] {
  const proxies = all.filter(({ target }) => target === 'local' || target === 'relay' || isTokenMode(target))
  return proxies.flatMap((one) => {
    const ratio = one.cpuMs.median / findCpuMs('pipe', all, one)
    if (Number.isNaN(ratio)) return []
    const what = `${one.target}: ${one.load}, ${one.concurrency} agents, CPU of the pass-through's`
    const measured = `${formatFigure(ratio)} times`
    const maxRatio = isTokenMode(one.target) ? MAX_RATIO_IN_TOKEN_MODE : MAX_RATIO_TO_PIPE
    return [{ what, wanted: `at most ${maxRatio} times`, measured, met: ratio <= maxRatio }]
  })
}
