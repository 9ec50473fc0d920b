/** The same load on every target, in alternating rounds, so that changes in the machine's speed affect all alike. */
import { Children } from '../parts/children.ts'
import type { LoadFigures, LoadJob, LoadResult } from '../parts/load-job.ts'
import { rssMib } from '../parts/proc-stat.ts'
import { startEngine } from '../parts/start-engine.ts'
import { computeSpread } from '../parts/statistics.ts'
import { figure, percent, table } from '../parts/table.ts'
import { createDatabase, isTokenMode, type Target, type TargetName, Targets } from '../parts/targets.ts'
import { TOKEN_MODEL } from '../parts/token-model.ts'
import type { Aim, Bench, Row } from './row.ts'

export interface Comparison {
  row: string
  title: string
  bodyBytes: number
  growthBytes: number
  stream: boolean
  maxTokens: number
  /** Whether it is also measured in token mode. */
  inTokenMode?: boolean
  aims(at: FigureAt): Aim[]
}

/** Returns the figures; undefined if the target was not measured. */
export type FigureAt = (target: TargetName, concurrency: number) => LoadFigures | undefined

interface Cell {
  target: TargetName
  concurrency: number
  rssMib: number
  figures: LoadFigures
}

/** The first warm-up is long enough for V8 to compile the path of a request: a proxy serves for days. */
const FULL = { concurrencies: [1, 16, 64], rounds: 5, durationMs: 700, warmUpMs: 100, firstWarmUpMs: 10_000 }
const QUICK = { concurrencies: [1, 16], rounds: 1, durationMs: 250, warmUpMs: 50, firstWarmUpMs: 100 }
const CALLS_PER_SESSION = 20

export function compare(comparison: Comparison): Row {
  return async (bench) => {
    await using children = new Children()
    const targets = await startTargets(bench, children, comparison)
    const cells = await measure(bench, comparison, targets)
    const figureAt: FigureAt = (target, concurrency) =>
      cells.find((cell) => cell.target === target && cell.concurrency === concurrency)?.figures
    return {
      row: comparison.row,
      report: report(comparison, cells, figureAt),
      aims: comparison.aims(figureAt),
      figures: cells,
    }
  }
}

async function startTargets(
  bench: Bench,
  children: Children,
  { row, inTokenMode }: Comparison,
): Promise<Target[]> {
  const { cpuProfileFolder, eventsPerWrite, targetNames } = bench
  const names = targetNames.filter((name) => inTokenMode || !isTokenMode(name))
  const tokenEngine = names.some(isTokenMode)
    ? await startEngine(children, { tokenizer: TOKEN_MODEL, eventsPerWrite })
    : undefined
  const started: Target[] = []
  for (const name of names) {
    const isToken = isTokenMode(name)
    const targets = new Targets(children, isToken ? tokenEngine!.url : bench.engineUrl)
    const args = isToken ? ['--tokenizer', TOKEN_MODEL] : []
    const db = await createDatabase(bench, row, name)
    started.push(await targets.start(name, { db, cpuProfileFolder, args }))
  }
  return started
}

async function measure(
  { load, quick, rounds }: Bench,
  comparison: Comparison,
  targets: Target[],
): Promise<Cell[]> {
  const plan = { ...(quick ? QUICK : FULL), ...(rounds !== undefined && { rounds }) }
  const { bodyBytes, growthBytes, stream, maxTokens } = comparison
  const job = (target: Target, concurrency: number, durationMs: number): LoadJob => ({
    url: target.url,
    ...(target.pid !== undefined && { watchPid: target.pid }),
    ...{ bodyBytes, growthBytes, stream, maxTokens, concurrency, durationMs },
    warmUpMs: plan.warmUpMs,
    callsPerSession: CALLS_PER_SESSION,
  })
  for (const target of targets) await load.run(job(target, 16, plan.firstWarmUpMs))
  const cells = plan.concurrencies.flatMap((concurrency) =>
    targets.map((target) => ({ target, concurrency, results: [] as LoadResult[], rss: [] as number[] })),
  )
  for (let round = 0; round < plan.rounds; round += 1) {
    for (const { target, concurrency, results, rss } of cells) {
      results.push(await load.run(job(target, concurrency, plan.durationMs)))
      rss.push(target.pid === undefined ? Number.NaN : rssMib(target.pid))
    }
  }
  return cells.map(({ target, concurrency, results, rss }) => ({
    target: target.name,
    concurrency,
    rssMib: Math.max(...rss),
    figures: getFigures(results),
  }))
}

function getFigures(results: readonly LoadResult[]): LoadFigures {
  const spread = (name: keyof LoadFigures) => computeSpread(results.map((result) => result[name]))
  return {
    callsPerSecond: spread('callsPerSecond'),
    tokensPerSecond: spread('tokensPerSecond'),
    p50Ms: spread('p50Ms'),
    p99Ms: spread('p99Ms'),
    firstByteP50Ms: spread('firstByteP50Ms'),
    cpuMsPerCall: spread('cpuMsPerCall'),
  }
}

function report(comparison: Comparison, cells: Cell[], at: FigureAt): string {
  const rate = comparison.stream ? 'tokensPerSecond' : 'callsPerSecond'
  const head = [
    'target @ concurrency',
    comparison.stream ? 'chunks/s' : 'requests/s',
    'min–max',
    'rate of pipe',
    'rate of parse',
    'p50 ms',
    '+p50 ms',
    'p99 ms',
    '+p99 ms',
    ...(comparison.stream ? ['+first ms'] : []),
    'CPU ms/request',
    'of pipe',
    'of pipe+ids',
    'of floor',
    'RSS MiB',
  ]
  const rows = cells.map(({ target, concurrency, figures, rssMib: rss }) => {
    const over = (name: keyof LoadFigures) =>
      target === 'direct'
        ? Number.NaN
        : figures[name].median - (at('direct', concurrency)?.[name].median ?? Number.NaN)
    const of = (other: TargetName) =>
      figures[rate].median / (at(other, concurrency)?.[rate].median ?? Number.NaN)
    const getCpu = (other: TargetName) => {
      const there = at(other, concurrency)?.cpuMsPerCall.median ?? Number.NaN
      return `${figure(figures.cpuMsPerCall.median / there)} ×`
    }
    return [
      `${target} @ ${concurrency}`,
      figure(figures[rate].median),
      `${figure(figures[rate].min)}–${figure(figures[rate].max)}`,
      percent(of('pipe')),
      percent(of('parse')),
      figure(figures.p50Ms.median),
      figure(over('p50Ms')),
      figure(figures.p99Ms.median),
      figure(over('p99Ms')),
      ...(comparison.stream ? [figure(over('firstByteP50Ms'))] : []),
      figure(figures.cpuMsPerCall.median),
      getCpu('pipe'),
      getCpu('pipe+ids'),
      getCpu('floor'),
      figure(rss),
    ]
  })
  return `### ${comparison.title}\n\n${table(head, rows)}`
}
