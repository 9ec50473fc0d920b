/**
 * npm run flood -- [--seconds 15] [--rounds 3] [--kinds silence,headers,hellos,bodies] [--open] [--quick] [--json FILE]
 *
 * Measures how unauthenticated connections affect a running agent: its requests are timed alternately without and under
 * each flood. The aims: its p99 stays within twice that without a flood, and the proxy's memory stays bounded. It exits
 * with 1 if the memory does not; the p99 is only printed, since other programs change it. `--open`: a proxy without
 * keys, which has no aims. `--quick`: checks that everything works; the figures are not reliable.
 */
import { once } from 'node:events'
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { parseArgs } from 'node:util'
import { type Child, Children } from './parts/children.ts'
import { FLOOD_KINDS, type FloodJob, type FloodKind, type FloodResult } from './parts/flood-job.ts'
import { LoadGenerator } from './parts/load-generator.ts'
import type { LoadJob, LoadResult } from './parts/load-job.ts'
import { describeMachine, formatMachine } from './parts/machine.ts'
import { getRssMib } from './parts/proc-stat.ts'
import { startEngine } from './parts/start-engine.ts'
import { quantile } from './parts/statistics.ts'
import { formatFigure, renderTable } from './parts/table.ts'
import { getChatUrl, Targets, waitForWorkers } from './parts/targets.ts'

const ADMIN_KEY = 'admin-key-of-the-flood-bench'
const WORKER_KEY = 'worker-key-of-the-flood-bench'
/** A realistic rate: without it the agent alone would occupy a core. */
const TOKENS_PER_SECOND = 200
const AGENTS = 8
/** Connections and their rate: 10,000 in total in the first ten seconds, plus those that replace closed ones. */
const FLOODS: Record<FloodKind, Pick<FloodJob, 'connections' | 'perSecond'>> = {
  silence: { connections: 10_000, perSecond: 1_000 },
  headers: { connections: 1_000, perSecond: 1_000 },
  hellos: { connections: 1_000, perSecond: 1_000 },
  bodies: { connections: 1_000, perSecond: 100 },
}
const MAX_RATIO = 2
/** The same load without a flood takes some 500 MiB. */
const MAX_RSS_MIB = 1_024
const SAMPLE_MS = 250
/** The time for the flooder to close its connections on a busy machine. */
const CLOSE_TIMEOUT_MS = 120_000

const { values: options } = parseArgs({
  options: {
    seconds: { type: 'string', default: '15' },
    rounds: { type: 'string', default: '3' },
    kinds: { type: 'string', default: FLOOD_KINDS.join() },
    open: { type: 'boolean', default: false },
    quick: { type: 'boolean', default: false },
    json: { type: 'string' },
  },
})

const SECONDS = options.quick ? 1 : Number(options.seconds)
const ROUNDS = options.quick ? 1 : Number(options.rounds)

await main()

async function main(): Promise<void> {
  const folder = mkdtempSync(join(tmpdir(), 'llm-proxy-flood-'))
  process.once('exit', () => rmSync(folder, { recursive: true, force: true }))
  const machine = describeMachine(folder)
  console.log(formatMachine(machine))
  await using children = new Children()
  const processes = await startBench(children, folder)
  await measure(processes, undefined)
  const kinds = options.kinds.split(',').map(parseKind)
  const phases: Phase[] = []
  for (let round = 0; round < ROUNDS; round += 1) {
    for (const kind of kinds) phases.push(await measure(processes, undefined), await measure(processes, kind))
  }
  const rows = [undefined, ...kinds].map((kind) => toRow(kind, phases))
  console.log(`\n${renderReport(rows)}`)
  if (options.json) writeFileSync(options.json, `${JSON.stringify({ machine, rows, phases }, null, 2)}\n`)
  if (options.quick || options.open) return
  for (const { kind, ratio } of rows)
    if (ratio > MAX_RATIO) console.log(`${kind}: the aim of ${MAX_RATIO} times the quiet p99 was missed`)
  if (rows.some(({ maxRssMib }) => maxRssMib > MAX_RSS_MIB)) process.exitCode = 1
}

function parseKind(name: string): FloodKind {
  const kind = FLOOD_KINDS.find((candidate) => candidate === name)
  if (!kind) throw new Error(`there is no flood ${name}; the floods are ${FLOOD_KINDS.join(', ')}`)
  return kind
}

interface Processes {
  proxy: Child
  load: LoadGenerator
  flooder: Child
}

/** Starts relay mode with a worker, so that there is a socket to flood as well. */
async function startBench(children: Children, folder: string): Promise<Processes> {
  const engine = await startEngine(children, { tokensPerSecond: TOKENS_PER_SECOND })
  const targets = new Targets(children, engine.url)
  const keys = options.open ? [] : ['--admin-key', ADMIN_KEY, '--worker-key', WORKER_KEY]
  const proxy = await targets.startRelayWithoutWorkers({ db: join(folder, 'flood.db'), args: keys })
  await targets.startWorker(proxy.url.replace('//', `//:${WORKER_KEY}@`), 'flood')
  await waitForWorkers(proxy.url, 1)
  const script = join(import.meta.dirname, 'processes/flooder.ts')
  const flooder = await children.start({ name: 'flooder', args: [script], silent: true, ipc: true })
  return { proxy, load: await LoadGenerator.start(children), flooder }
}

interface Phase {
  kind: FloodKind | undefined
  load: LoadResult
  flood: FloodResult | undefined
  maxRssMib: number
}

/**
 * Measures one phase.
 * @param kind undefined: without a flood
 * @throws Error if one of the agent's requests fails
 */
async function measure({ proxy, load, flooder }: Processes, kind: FloodKind | undefined): Promise<Phase> {
  const durationMs = SECONDS * 1_000
  let maxRssMib = 0
  const sampler = setInterval(() => {
    maxRssMib = Math.max(maxRssMib, getRssMib(proxy.pid))
  }, SAMPLE_MS)
  try {
    const flooding = kind && startFlood(flooder, { kind, url: proxy.url, durationMs, ...FLOODS[kind] })
    const result = await load.run(createAgentsJob(proxy, durationMs))
    const flood = await flooding
    return { kind, load: result, flood, maxRssMib }
  } finally {
    clearInterval(sampler)
  }
}

async function startFlood({ process: flooder }: Child, job: FloodJob): Promise<FloodResult> {
  flooder.send(job)
  const [result] = await once(flooder, 'message', {
    signal: AbortSignal.timeout(job.durationMs + CLOSE_TIMEOUT_MS),
  })
  return result as FloodResult
}

function createAgentsJob(proxy: Child, durationMs: number): LoadJob {
  return {
    url: getChatUrl(proxy.url),
    headers: { authorization: `Bearer ${ADMIN_KEY}` },
    bodyBytes: 1_000,
    growthBytes: 0,
    stream: true,
    maxTokens: 20,
    concurrency: AGENTS,
    durationMs,
    warmUpMs: 0,
    requestsPerSession: 20,
    watchPid: proxy.pid,
  }
}

interface FloodRow {
  kind: FloodKind | 'quiet'
  requests: number
  p50Ms: number
  p99Ms: number
  /** The p99 relative to that without a flood. */
  ratio: number
  cpuPercent: number
  maxRssMib: number
  opened: number
  mostOpen: number
}

function toRow(kind: FloodKind | undefined, phases: readonly Phase[]): FloodRow {
  const matching = phases.filter((phase) => phase.kind === kind)
  const median = (values: number[]) => quantile(values, 0.5)
  const getP99 = (of: readonly Phase[]) => median(of.map(({ load }) => load.p99Ms))
  return {
    kind: kind ?? 'quiet',
    requests: matching.reduce((sum, { load }) => sum + load.requests, 0),
    p50Ms: median(matching.map(({ load }) => load.p50Ms)),
    p99Ms: getP99(matching),
    ratio: getP99(matching) / getP99(phases.filter((phase) => phase.kind === undefined)),
    cpuPercent: median(matching.map(({ load }) => (100 * load.cpuSeconds) / load.seconds)),
    maxRssMib: Math.max(...matching.map(({ maxRssMib }) => maxRssMib)),
    opened: median(matching.map(({ flood }) => flood?.opened ?? 0)),
    mostOpen: median(matching.map(({ flood }) => flood?.mostOpen ?? 0)),
  }
}

function renderReport(rows: readonly FloodRow[]): string {
  return renderTable(
    ['flood', 'opened', 'most open', 'requests', 'p50 ms', 'p99 ms', 'p99 to quiet', 'CPU %', 'RSS MiB'],
    rows.map((row) => [
      row.kind,
      formatFigure(row.opened),
      formatFigure(row.mostOpen),
      formatFigure(row.requests),
      formatFigure(row.p50Ms),
      formatFigure(row.p99Ms),
      formatFigure(row.ratio),
      formatFigure(row.cpuPercent),
      formatFigure(row.maxRssMib),
    ]),
  )
}
