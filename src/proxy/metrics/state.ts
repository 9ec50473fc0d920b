/** Metrics that are read on each scrape and cost nothing between scrapes. */
import { readdir, stat } from 'node:fs/promises'
import { monitorEventLoopDelay } from 'node:perf_hooks'
import { getHeapStatistics } from 'node:v8'
import type { Backend, BackendMember } from '../engines/port/backend.ts'
import type { TurnStore } from '../store/port/turn-store.ts'
import type { Gauge } from './families.ts'
import type { Metrics } from './metrics.ts'

/** The maximum number of members with separate series; the others share one, so that labels have few values. */
const MAX_MEMBERS = 64
const OTHER = 'other'

/**
 * Sets the gauges of engines, workers, the queue and the turns in flight, and removes the series of removed members.
 * @param openTurns the number of turns in flight
 */
export function readBackend(metrics: Metrics, backend: Backend, openTurns: number): void {
  const { members, queued, pausedSinceMs } = backend.getStatus()
  const { memberUp, memberUnavailable, memberEjected, memberCalls, memberCapacity, weightInfo, inFlight } =
    metrics
  for (const gauge of [memberUp, memberUnavailable, memberEjected, memberCalls, memberCapacity, weightInfo])
    gauge.clear()
  const shown = members.slice(0, MAX_MEMBERS)
  const others = members.slice(MAX_MEMBERS)
  const set = (gauge: Gauge, value: (member: BackendMember) => number) => {
    for (const member of shown) gauge.set(value(member), member.name)
    if (others.length > 0) gauge.set(sumBy(others, value), OTHER)
  }
  set(memberUp, ({ healthy }) => Number(healthy))
  set(memberUnavailable, ({ unavailable }) => Number(unavailable !== undefined))
  set(memberEjected, ({ ejectedForMs }) => Number(ejectedForMs !== undefined))
  set(memberCalls, (member) => member.inFlight)
  set(memberCapacity, (member) => member.capacity)
  for (const { name, weightVersion } of shown)
    if (weightVersion !== undefined) weightInfo.set(1, name, weightVersion)
  const served = sumBy(members, (member) => member.inFlight)
  metrics.queueDepth.set(queued)
  metrics.paused.set(pausedSinceMs === undefined ? 0 : 1)
  inFlight.set(queued, 'queued')
  inFlight.set(served, 'engine')
  // An engine request may end shortly after its turn, so the difference may be negative.
  inFlight.set(Math.max(0, openTurns - queued - served), 'proxy')
}

function sumBy(members: readonly BackendMember[], value: (member: BackendMember) => number): number {
  return members.reduce((sum, member) => sum + value(member), 0)
}

/** Sets the sizes of the SQLite database and of its write-ahead log. @param path the path of the database */
export async function readFiles({ databaseBytes }: Metrics, path: string): Promise<void> {
  databaseBytes.set(await getFileSize(path), 'database')
  databaseBytes.set(await getFileSize(`${path}-wal`), 'wal')
}

/** Returns the size of a file, 0 if it does not exist. */
async function getFileSize(path: string): Promise<number> {
  return (await stat(path).catch(() => undefined))?.size ?? 0
}

/** Sets the number of active sessions. If the store fails, the series is removed; failures have a separate metric. */
export async function readSessions(
  { sessionsActive }: Metrics,
  store: Pick<TurnStore, 'countSessions'>,
): Promise<void> {
  const count = await store.countSessions(Date.now()).catch(() => undefined)
  if (count === undefined) sessionsActive.clear()
  else sessionsActive.set(count.active)
}

/** A reader of the metrics of the process and its event loop. */
export class ProcessReader implements Disposable {
  readonly #delay = monitorEventLoopDelay({ resolution: 20 })
  #cpuSeconds = 0

  constructor() {
    this.#delay.enable()
  }

  async read(metrics: Metrics): Promise<void> {
    const { user, system } = process.cpuUsage()
    const cpuSeconds = (user + system) / 1e6
    metrics.cpuSeconds.add(cpuSeconds - this.#cpuSeconds)
    this.#cpuSeconds = cpuSeconds
    const resident = readResidentBytes()
    if (resident === undefined) metrics.residentBytes.clear()
    else metrics.residentBytes.set(resident)
    metrics.heapBytes.set(getHeapStatistics().used_heap_size)
    metrics.startTime.set(Date.now() / 1_000 - process.uptime())
    this.#readDelay(metrics)
    const openFiles = await readdir('/proc/self/fd').catch(() => undefined)
    if (openFiles === undefined) metrics.openFiles.clear()
    else metrics.openFiles.set(openFiles.length)
  }

  [Symbol.dispose](): void {
    this.#delay.disable()
  }

  #readDelay({ loopDelay }: Metrics): void {
    const delay = this.#delay
    if (delay.count > 0) {
      loopDelay.set(delay.mean / 1e9, 'mean')
      loopDelay.set(delay.percentile(99) / 1e9, 'p99')
      loopDelay.set(delay.max / 1e9, 'max')
    }
    delay.reset()
  }
}

/** Returns the resident memory in bytes; undefined if the system does not report it, such as Linux without `/proc`. */
function readResidentBytes(): number | undefined {
  try {
    return process.memoryUsage.rss()
  } catch {
    return undefined
  }
}
