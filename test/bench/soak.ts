/**
 * npm run soak -- [--hours 6 | --seconds 20] [--sessions 1000] [--requests-per-second 8]
 *   [--workers 2] [--hostile 2] [--seed N] [--json FILE] [--svg FILE]
 *
 * Runs the proxy for any time, alternating between its modes: local and relay, prompts of the engine and of the proxy.
 * Meanwhile weights are updated, proxy, workers and engines are killed, links are cut, and agents disconnect; half of
 * the time hostile agents run beside the others. Every response must be recorded with its ids, and trained once;
 * memory, latency and file size must not grow; a request beside hostile agents may take three times as long. Exits with
 * 1 otherwise.
 */
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { parseArgs } from 'node:util'
import { Children } from './parts/children.ts'
import { describeMachine, formatMachine } from './parts/machine.ts'
import { quantile } from './parts/statistics.ts'
import { formatFigure, formatPercent, renderTable } from './parts/table.ts'
import { seededRandom } from './parts/text.ts'
import { createCounts, runAgents, type SoakCounts } from './soak/agents.ts'
import { drawChart } from './soak/chart.ts'
import { type HostileCounts, isHostileTime, runHostile } from './soak/hostile.ts'
import { injectFaults } from './soak/inject-faults.ts'
import { LinkCutter } from './soak/link-cutter.ts'
import { getTimes, type SoakPlan } from './soak/plan.ts'
import { computeGrowth, isFlat, type Measurements, Sampler } from './soak/samples.ts'
import { SoakWorld } from './soak/world.ts'

const MEAN_LINK_LIFE_MS = 30_000
const SAMPLE_MS = 1_000
const REPORT_EVERY_MS = 60_000
const SHOWN_FAULTS = 20
/** The limit of p99 beside hostile agents relative to p99 without them. */
const MAX_RATIO = 3
/** The first leg's processes start before the clock does. */
const START_MS = 15_000

const { values: options } = parseArgs({
  options: {
    hours: { type: 'string' },
    seconds: { type: 'string', default: '600' },
    sessions: { type: 'string', default: '1000' },
    'requests-per-second': { type: 'string', default: '8' },
    workers: { type: 'string', default: '2' },
    hostile: { type: 'string', default: '2' },
    durability: { type: 'string', default: 'power' },
    seed: { type: 'string', default: '1' },
    json: { type: 'string' },
    svg: { type: 'string' },
  },
})

await main()

async function main(): Promise<void> {
  const folder = mkdtempSync(join(tmpdir(), 'llm-proxy-soak-'))
  process.once('exit', () => rmSync(folder, { recursive: true, force: true }))
  const machine = formatMachine(describeMachine(folder))
  console.log(machine)
  const plan: SoakPlan = {
    seconds: options.hours === undefined ? Number(options.seconds) : 3_600 * Number(options.hours),
    sessions: Number(options.sessions),
    requestsPerSecond: Number(options['requests-per-second']),
    workers: Number(options.workers),
    hostile: Number(options.hostile),
    seed: Number(options.seed),
    durability: options.durability === 'process' ? 'process' : 'power',
  }
  const result = await soak(plan, join(folder, 'soak.db'))
  printReport(plan, result)
  const { counts, hostile, world, ...measured } = result
  const { kills, stallsMs } = world
  if (options.json)
    writeFileSync(
      options.json,
      `${JSON.stringify({ machine, plan, kills, stallsMs, tally: counts, hostile, ...measured }, null, 1)}\n`,
    )
  const caption = `${plan.sessions} sessions at once, ${counts.requests} requests; shaded: local and relay, chat and token mode alternately`
  if (options.svg) writeFileSync(options.svg, drawChart({ ...measured, times: counts.times }, caption))
  const faults = [...world.faults, ...counts.faults, ...hostile.faults]
  const isGood = faults.length === 0 && stallsMs.length === 0 && compareP99(result).ratio <= MAX_RATIO
  if (!isGood || !computeGrowth({ ...measured, times: counts.times }).every(isFlat)) process.exitCode = 1
}

interface SoakResult extends Omit<Measurements, 'times'> {
  counts: SoakCounts
  hostile: HostileCounts
  world: SoakWorld
  cuts: number
}

async function soak(plan: SoakPlan, db: string): Promise<SoakResult> {
  // The links outlive the processes: a worker that cannot reach its proxy is slow to end.
  await using links = new AsyncDisposableStack()
  await using children = new Children()
  const { legs, thinkMs, ttlS } = getTimes(plan, Date.now() + START_MS)
  const world = await SoakWorld.start(
    children,
    { db, ttlS, durability: plan.durability, workers: plan.workers },
    links,
  )
  await world.startLeg(legs[0]!)
  const random = seededRandom(plan.seed)
  using sampler = new Sampler(world, db, SAMPLE_MS)
  using cutter = new LinkCutter(world.links, MEAN_LINK_LIFE_MS, seededRandom(plan.seed + 1))
  const counts = createCounts()
  const hostile: HostileCounts = { requests: 0, statuses: {}, faults: [] }
  using _reports = startReports(counts, world)
  const untilMs = legs.at(-1)!.toMs
  await Promise.all([
    injectFaults(world, legs, random),
    runAgents(world, { count: plan.sessions, untilMs, thinkMs, seed: plan.seed }, counts),
    runHostile(world, { count: plan.hostile, legs, seed: plan.seed }, hostile),
  ])
  world.release()
  return { legs, samples: sampler.samples, counts, hostile, world, cuts: cutter.cuts }
}

function startReports(counts: SoakCounts, world: SoakWorld): Disposable {
  let reportedCount = 0
  const timer = setInterval(() => {
    const faults = [...world.faults, ...counts.faults]
    const { requests, sessions, endings, codes } = counts
    const { answered, refused, broken } = endings
    console.log(
      `… ${requests} requests in ${sessions} sessions: completed ${answered}, rejected ${refused} ${JSON.stringify(codes)}, ` +
        `broken ${broken}; ${faults.length} faults`,
    )
    for (const fault of faults.slice(reportedCount, reportedCount + SHOWN_FAULTS))
      console.log(`  ${fault.split('\n')[0]}`)
    reportedCount = faults.length
  }, REPORT_EVERY_MS)
  return { [Symbol.dispose]: () => clearInterval(timer) }
}

/** Compares the p99 of completed requests, in milliseconds, for which the proxy was available all the time. */
function compareP99({ legs, counts: { times } }: SoakResult): {
  alone: number
  beside: number
  ratio: number
} {
  const uninterrupted = times.filter(({ wasAway }) => !wasAway)
  const p99 = (hostile: boolean) =>
    quantile(
      uninterrupted.filter(({ atMs }) => isHostileTime(legs, atMs) === hostile).map(({ ms }) => ms),
      0.99,
    )
  const [alone, beside] = [p99(false), p99(true)]
  return { alone, beside, ratio: beside / alone }
}

function printReport({ seconds, sessions }: SoakPlan, result: SoakResult): void {
  const { counts, hostile, world, legs, samples, cuts } = result
  const { answered, refused, left, broken } = counts.endings
  const codes = Object.entries(counts.codes).map(([code, count]) => `${code} ${count}`)
  const { proxy, worker, engine, updates } = world.kills
  const times = counts.times.map(({ ms }) => ms)
  const faults = [...world.faults, ...counts.faults, ...hostile.faults]
  const { alone, beside, ratio } = compareP99(result)
  const rss = samples.map(({ proxyMib }) => proxyMib).filter((mib) => mib > 0)
  console.log(`${seconds} s in ${legs.length} legs, ${sessions} sessions at once
kills      proxy ${proxy}, workers ${worker}, engines ${engine}; ${cuts} links cut; weights replaced ${updates} times
sessions   ${counts.sessions}, of which ${counts.abandoned} were never ended
requests   ${counts.requests}, p50 ${formatFigure(quantile(times, 0.5))} ms, p99 ${formatFigure(quantile(times, 0.99))} ms, the longest ${formatFigure(counts.longestMs / 1000)} s
completed  ${answered}, each recorded with its ids, and trained once
rejected   ${refused}${codes.length > 0 ? ` (${codes.join(', ')})` : ''}
cancelled  ${left}
broken     ${broken} while the proxy was unavailable
hostile    ${hostile.requests} ${JSON.stringify(hostile.statuses)}; p99 beside them ${formatFigure(beside)} ms, without ${formatFigure(alone)} ms (${formatFigure(ratio)} times)
memory     proxy ${formatFigure(quantile(rss, 0.5))} MiB, at most ${formatFigure(Math.max(...rss))}
stalls     ${world.stallsMs.length}${world.stallsMs.length > 0 ? `, the longest ${formatFigure(Math.max(...world.stallsMs))} ms` : ''}`)
  const growth = computeGrowth({ legs, samples, times: counts.times })
  const rows = growth.map((each) => {
    const { what, second, last, unit } = each
    return [
      what,
      `${formatFigure(second)} ${unit}`,
      `${formatFigure(last)} ${unit}`,
      formatPercent(last / second - 1),
      isFlat(each) ? 'flat' : 'GROWS',
    ]
  })
  if (rows.length > 0) console.log(renderTable(['', 'second round', 'last round', 'growth', ''], rows))
  console.log(`${faults.length} faults`)
  for (const fault of faults.slice(0, SHOWN_FAULTS)) console.log(`  ${fault.split('\n')[0]}`)
}
