/** What is read when somebody scrapes, and costs nothing before. */
import { readdir, stat } from 'node:fs/promises'
import { monitorEventLoopDelay } from 'node:perf_hooks'
import { getHeapStatistics } from 'node:v8'
import type { Backend, BackendMember } from '../engines/port/backend.ts'
import type { TurnStore } from '../store/port/turn-store.ts'
import type { Gauge } from './families.ts'
import type { ProxyMetrics } from './proxy-metrics.ts'

/** Members beyond these are counted together. */
const MAX_MEMBERS = 64
const OTHER = 'other'

/** Engines and workers, the queue and the turns in flight. A member's series go when it goes. */
export function readBackend(metrics: ProxyMetrics, backend: Backend, openTurns: number): void {
  const { members, queued, pausedSinceMs } = backend.status()
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
  // A call to an engine may outlive its turn by a moment.
  inFlight.set(Math.max(0, openTurns - queued - served), 'proxy')
}

function sumBy(members: readonly BackendMember[], value: (member: BackendMember) => number): number {
  return members.reduce((sum, member) => sum + value(member), 0)
}

/** @param path of the database; the log lies beside it */
export async function readFiles({ databaseBytes }: ProxyMetrics, path: string): Promise<void> {
  databaseBytes.set(await getFileSize(path), 'database')
  databaseBytes.set(await getFileSize(`${path}-wal`), 'wal')
}

/** A log that is not there holds nothing. */
async function getFileSize(path: string): Promise<number> {
  return (await stat(path).catch(() => undefined))?.size ?? 0
}

/** A store that cannot answer has a metric of its own, and leaves this one out. */
export async function readSessions(
  { sessionsActive }: ProxyMetrics,
  store: Pick<TurnStore, 'countSessions'>,
): Promise<void> {
  const count = await store.countSessions(Date.now()).catch(() => undefined)
  if (count === undefined) sessionsActive.clear()
  else sessionsActive.set(count.active)
}

/** The process and its event loop; to be disposed of with the server. */
export class ProcessReader implements Disposable {
  readonly #delay = monitorEventLoopDelay({ resolution: 20 })
  #cpuSeconds = 0

  constructor() {
    this.#delay.enable()
  }

  async read(metrics: ProxyMetrics): Promise<void> {
    const { user, system } = process.cpuUsage()
    const cpuSeconds = (user + system) / 1e6
    metrics.cpuSeconds.add(cpuSeconds - this.#cpuSeconds)
    this.#cpuSeconds = cpuSeconds
    const resident = residentBytes()
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

  #readDelay({ loopDelay }: ProxyMetrics): void {
    const delay = this.#delay
    if (delay.count > 0) {
      loopDelay.set(delay.mean / 1e9, 'mean')
      loopDelay.set(delay.percentile(99) / 1e9, 'p99')
      loopDelay.set(delay.max / 1e9, 'max')
    }
    delay.reset()
  }
}

/** undefined: the system does not say, as Linux without `/proc`. */
function residentBytes(): number | undefined {
  try {
    return process.memoryUsage.rss()
  } catch {
    return undefined
  }
}
