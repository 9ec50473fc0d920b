/** The same load on every target, in alternating rounds, so that changes in the machine's speed affect all alike. */
import { Children } from '../parts/children.ts'
import type { LoadFigures, LoadJob, LoadResult } from '../parts/load-job.ts'
import { getRssMib } from '../parts/proc-stat.ts'
import { startEngine } from '../parts/start-engine.ts'
import { computeSpread } from '../parts/statistics.ts'
import { formatFigure, formatPercent, renderTable } from '../parts/table.ts'
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
  /** Whether the load is also measured in token mode. */
  inTokenMode?: boolean
  createAims(getFigures: FigureLookup): Aim[]
}

/** Returns the figures; undefined if the target was not measured. */
export type FigureLookup = (target: TargetName, concurrency: number) => LoadFigures | undefined

interface Cell {
  target: TargetName
  concurrency: number
  rssMib: number
  figures: LoadFigures
}

/** The first warm-up is long enough for V8 to compile the path of a request: a proxy serves for days. */
const FULL = { concurrencies: [1, 16, 64], rounds: 5, durationMs: 700, warmUpMs: 100, firstWarmUpMs: 10_000 }
const QUICK = { concurrencies: [1, 16], rounds: 1, durationMs: 250, warmUpMs: 50, firstWarmUpMs: 100 }
const REQUESTS_PER_SESSION = 20

export function compare(comparison: Comparison): Row {
  return async (bench) => {
    await using children = new Children()
    const targets = await startTargets(bench, children, comparison)
    const cells = await measure(bench, comparison, targets)
    const getFigures: FigureLookup = (target, concurrency) =>
      cells.find((cell) => cell.target === target && cell.concurrency === concurrency)?.figures
    return {
      row: comparison.row,
      report: renderReport(comparison, cells, getFigures),
      aims: comparison.createAims(getFigures),
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
    requestsPerSession: REQUESTS_PER_SESSION,
  })
  for (const target of targets) await load.run(job(target, 16, plan.firstWarmUpMs))
  const cells = plan.concurrencies.flatMap((concurrency) =>
    targets.map((target) => ({ target, concurrency, results: [] as LoadResult[], rss: [] as number[] })),
  )
  for (let round = 0; round < plan.rounds; round += 1) {
    for (const { target, concurrency, results, rss } of cells) {
      results.push(await load.run(job(target, concurrency, plan.durationMs)))
      rss.push(target.pid === undefined ? Number.NaN : getRssMib(target.pid))
    }
  }
  return cells.map(({ target, concurrency, results, rss }) => ({
    target: target.name,
    concurrency,
    rssMib: Math.max(...rss),
    figures: computeFigures(results),
  }))
}

function computeFigures(results: readonly LoadResult[]): LoadFigures {
  const spread = (name: keyof LoadFigures) => computeSpread(results.map((result) => result[name]))
  return {
    requestsPerSecond: spread('requestsPerSecond'),
    tokensPerSecond: spread('tokensPerSecond'),
    p50Ms: spread('p50Ms'),
    p99Ms: spread('p99Ms'),
    firstByteP50Ms: spread('firstByteP50Ms'),
    cpuMsPerRequest: spread('cpuMsPerRequest'),
  }
}

function renderReport(comparison: Comparison, cells: Cell[], getFigures: FigureLookup): string {
  const rate = comparison.stream ? 'tokensPerSecond' : 'requestsPerSecond'
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
    const getAdded = (name: keyof LoadFigures) =>
      target === 'direct'
        ? Number.NaN
        : figures[name].median - (getFigures('direct', concurrency)?.[name].median ?? Number.NaN)
    const getRatio = (other: TargetName) =>
      figures[rate].median / (getFigures(other, concurrency)?.[rate].median ?? Number.NaN)
    const formatCpuRatio = (other: TargetName) => {
      const otherCpuMs = getFigures(other, concurrency)?.cpuMsPerRequest.median ?? Number.NaN
      return `${formatFigure(figures.cpuMsPerRequest.median / otherCpuMs)} ×`
    }
    return [
      `${target} @ ${concurrency}`,
      formatFigure(figures[rate].median),
      `${formatFigure(figures[rate].min)}–${formatFigure(figures[rate].max)}`,
      formatPercent(getRatio('pipe')),
      formatPercent(getRatio('parse')),
      formatFigure(figures.p50Ms.median),
      formatFigure(getAdded('p50Ms')),
      formatFigure(figures.p99Ms.median),
      formatFigure(getAdded('p99Ms')),
      ...(comparison.stream ? [formatFigure(getAdded('firstByteP50Ms'))] : []),
      formatFigure(figures.cpuMsPerRequest.median),
      formatCpuRatio('pipe'),
      formatCpuRatio('pipe+ids'),
      formatCpuRatio('floor'),
      formatFigure(rss),
    ]
  })
  return `### ${comparison.title}\n\n${renderTable(head, rows)}`
}
