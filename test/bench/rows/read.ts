/**
 * CPU time and memory of reading a session: measures whether they depend on what is new in its turns, or on everything
 * that each turn repeats.
 */
import { join } from 'node:path'
import { Children } from '../parts/children.ts'
import { converse } from '../parts/grown-session.ts'
import { cpuSeconds, rssMib } from '../parts/proc-stat.ts'
import { figure, table } from '../parts/table.ts'
import { Targets } from '../parts/targets.ts'
import type { Bench, Row } from './row.ts'

const TURNS = { full: [200, 400, 800], quick: [5, 10] } as const
/** Repetitions that make steps of 10 ms negligible. */
const TIMES = { full: 10, quick: 1 } as const
const WAYS = ['/trajectories', '/tree', '?messages=new&ids=false', '/traces'] as const
/** Each trace contains its complete prompt, so its cost is proportional to its bytes. */
const REPEATING: ReadonlySet<Way> = new Set(['/traces'])
/**
 * The permitted cost of a longer session's turn relative to a shorter one's: caches of the CPU, and garbage
 * collections.
 */
const MOST_OF_SHORTEST = 1.5

type Way = (typeof WAYS)[number]

interface Reading {
  way: Way
  turns: number
  cpuMs: number
  bytes: number
  rssMib: number
}

export const read: Row = async (bench) => {
  const lengths = bench.quick ? TURNS.quick : TURNS.full
  const readings: Reading[] = []
  for (const turns of lengths) readings.push(...(await getReadings(bench, turns)))
  const cost = (way: Way, turns: number) => {
    const { cpuMs, bytes } = readings.find((one) => one.way === way && one.turns === turns)!
    return REPEATING.has(way) ? cpuMs / (bytes / 1e6) : cpuMs / turns
  }
  const growth = (way: Way) => cost(way, lengths.at(-1)!) / cost(way, lengths[0])
  const unit = (way: Way) => (REPEATING.has(way) ? 'MB' : 'turn')
  const memory = lengths.map((turns) => {
    const after = readings.findLast((one) => one.turns === turns)!
    return `${figure(after.rssMib)} MiB (${turns} turns)`
  })
  return {
    row: 'read',
    report: `### Reading a session that grows by 2 KB a turn\n\n${table(
      [
        'GET /sessions/…',
        ...lengths.map((turns) => `CPU ms, ${turns} turns`),
        'for each',
        'longest of shortest',
      ],
      WAYS.map((way) => [
        way,
        ...lengths.map((turns) => figure(cost(way, turns))),
        unit(way),
        `${figure(growth(way))} ×`,
      ]),
    )}\n\nRSS after reading: ${memory.join(', ')}.`,
    aims: WAYS.map((way) => ({
      what: `CPU time for a ${unit(way)} of ${way}, the longest session against the shortest`,
      wanted: `at most ${MOST_OF_SHORTEST} times`,
      measured: `${figure(growth(way))} times`,
      met: growth(way) <= MOST_OF_SHORTEST,
    })),
    figures: readings,
  }
}

async function getReadings({ engineUrl, folder, quick }: Bench, turns: number): Promise<Reading[]> {
  await using children = new Children()
  const targets = new Targets(children, engineUrl)
  const proxy = await targets.startLocal({ db: join(folder, `read-${turns}.db`) })
  await converse(`${proxy.url}/grown/v1/chat/completions`, 1, turns)
  const times = quick ? TIMES.quick : TIMES.full
  const readings: Reading[] = []
  for (const way of WAYS) {
    const url = `${proxy.url}/sessions/grown${way}`
    // The first read compiles code.
    const bytes = await readAll(url)
    const before = cpuSeconds(proxy.pid)
    for (let time = 0; time < times; time += 1) await readAll(url)
    const cpuMs = ((cpuSeconds(proxy.pid) - before) * 1000) / times
    readings.push({ way, turns, cpuMs, bytes, rssMib: rssMib(proxy.pid) })
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
