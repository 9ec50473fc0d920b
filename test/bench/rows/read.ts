/**
 * CPU time and memory of reading a session: measures whether they grow with the new content of its turns, or with
 * everything that each turn repeats.
 */
import { join } from 'node:path'
import { Children } from '../parts/children.ts'
import { converse } from '../parts/growing-session.ts'
import { getCpuSeconds, getRssMib } from '../parts/proc-stat.ts'
import { formatFigure, renderTable } from '../parts/table.ts'
import { Targets } from '../parts/targets.ts'
import type { Bench, Row } from './row.ts'

const TURNS = { full: [200, 400, 800], quick: [5, 10] } as const
/** Repetitions that make steps of 10 ms negligible. */
const TIMES = { full: 10, quick: 1 } as const
const ENDPOINTS = ['/trajectories', '/tree', '?messages=new&ids=false', '/traces'] as const
/** Each trace contains its complete prompt, so its cost is proportional to its bytes. */
const REPEATING_ENDPOINTS: ReadonlySet<Endpoint> = new Set(['/traces'])
/**
 * The permitted cost of a longer session's turn relative to a shorter one's: caches of the CPU, and garbage
 * collections.
 */
const MAX_RATIO = 1.5

type Endpoint = (typeof ENDPOINTS)[number]

interface Reading {
  endpoint: Endpoint
  turns: number
  cpuMs: number
  bytes: number
  rssMib: number
}

export const read: Row = async (bench) => {
  const lengths = bench.quick ? TURNS.quick : TURNS.full
  const readings: Reading[] = []
  for (const turns of lengths) readings.push(...(await measure(bench, turns)))
  const getCost = (endpoint: Endpoint, turns: number) => {
    const { cpuMs, bytes } = readings.find((one) => one.endpoint === endpoint && one.turns === turns)!
    return REPEATING_ENDPOINTS.has(endpoint) ? cpuMs / (bytes / 1e6) : cpuMs / turns
  }
  const getGrowth = (endpoint: Endpoint) => getCost(endpoint, lengths.at(-1)!) / getCost(endpoint, lengths[0])
  const getUnit = (endpoint: Endpoint) => (REPEATING_ENDPOINTS.has(endpoint) ? 'MB' : 'turn')
  const memory = lengths.map((turns) => {
    const after = readings.findLast((one) => one.turns === turns)!
    return `${formatFigure(after.rssMib)} MiB (${turns} turns)`
  })
  return {
    row: 'read',
    report: `### Reading a session that grows by 2 KB a turn\n\n${renderTable(
      [
        'GET /sessions/…',
        ...lengths.map((turns) => `CPU ms, ${turns} turns`),
        'for each',
        'longest of shortest',
      ],
      ENDPOINTS.map((endpoint) => [
        endpoint,
        ...lengths.map((turns) => formatFigure(getCost(endpoint, turns))),
        getUnit(endpoint),
        `${formatFigure(getGrowth(endpoint))} ×`,
      ]),
    )}\n\nRSS after reading: ${memory.join(', ')}.`,
    aims: ENDPOINTS.map((endpoint) => ({
      what: `CPU time for a ${getUnit(endpoint)} of ${endpoint}, the longest session against the shortest`,
      wanted: `at most ${MAX_RATIO} times`,
      measured: `${formatFigure(getGrowth(endpoint))} times`,
      met: getGrowth(endpoint) <= MAX_RATIO,
    })),
    figures: readings,
  }
}

async function measure({ engineUrl, folder, quick }: Bench, turns: number): Promise<Reading[]> {
  await using children = new Children()
  const targets = new Targets(children, engineUrl)
  const proxy = await targets.startLocal({ db: join(folder, `read-${turns}.db`) })
  await converse(`${proxy.url}/grown/v1/chat/completions`, 1, turns)
  const times = quick ? TIMES.quick : TIMES.full
  const readings: Reading[] = []
  for (const endpoint of ENDPOINTS) {
    const url = `${proxy.url}/sessions/grown${endpoint}`
    // The first read compiles code.
    const bytes = await readAll(url)
    const before = getCpuSeconds(proxy.pid)
    for (let time = 0; time < times; time += 1) await readAll(url)
    const cpuMs = ((getCpuSeconds(proxy.pid) - before) * 1000) / times
    readings.push({ endpoint, turns, cpuMs, bytes, rssMib: getRssMib(proxy.pid) })
  }
  return readings
}

async function readAll(url: string): Promise<number> {
  const response = await fetch(url)
  if (!response.ok) throw new Error(`${url}: ${await response.text()}`)
  let bytes = 0
  for await (const chunk of response.body!) bytes += chunk.length
  return bytes
}
