/** The metrics of one proxy: observers that its parts call, and the response to a scrape. */
import { type Clock, systemClock } from '../../base/clock.ts'
import type { Logger } from '../../base/logger.ts'
import { VERSION } from '../../base/version.ts'
import type { DispatchObserver } from '../engines/dispatch/dispatcher.ts'
import type { Backend, BackendMember } from '../engines/port/backend.ts'
import type { Prompts } from '../session/prompts/prompts.ts'
import type { Trajectory } from '../session/trajectories/trajectories.ts'
import type { TurnStore } from '../store/port/turn-store.ts'
import { type Exposition, expose } from './exposition.ts'
import type { MetricSample } from './families.ts'
import { Metrics } from './metrics.ts'
import { ProcessReader, readBackend, readFiles, readSessions } from './state.ts'
import { logThroughput } from './throughput.ts'
import { TurnWatch } from './turn-watch.ts'

/** The metrics, as the routes of the HTTP server use them. */
export interface MetricsSource {
  /** Returns the response to a scrape. @param accept the `Accept` header */
  expose(accept: string | undefined): Promise<Exposition>
  /** Counts a request that failed. @param code error code of the catalogue */
  countFailedRequest(code: string): void
  /** Counts a row that a trainer read. @param trainerVersion the weight version that the trainer declares */
  countRow(
    row: Pick<Trajectory, 'weight_version_min' | 'unversioned_turns'>,
    trainerVersion: string | undefined,
  ): void
}

/** The parts that each scrape reads. */
interface ScrapeSources {
  backend: Backend
  store: Pick<TurnStore, 'countSessions'>
  /** Absent for an in-memory store. */
  databasePath?: string
  prompts: Pick<Prompts, 'getCounts'>
  /** Rollouts that the proxy runs itself; absent if it runs none. */
  rollouts?: RolloutCounts | undefined
}

/** The counts of rollouts of `--runner`. */
interface RolloutCounts {
  readonly running: number
  readonly waiting: number
  /** Ended rollouts by outcome, since the start of the process. */
  readonly ended: Readonly<Record<string, number>>
  /** The total duration of the ended rollouts in seconds. */
  readonly seconds: number
  /** The number of times that rollouts ran their agent. */
  readonly tries: number
}

/**
 * Returns by how much the number at the end of `served`, such as `step-120`, exceeds that of `oldest`: 0 or more;
 * undefined if one of the two does not end in a number.
 */
function computeStaleness(oldest: string, served: string | undefined): number | undefined {
  const [from, to] = [parseVersionNumber(oldest), parseVersionNumber(served ?? '')]
  return from === undefined || to === undefined ? undefined : Math.max(0, to - from)
}

/** Returns the weight version with the highest number that an engine or worker reports. */
function findNewest(members: readonly BackendMember[]): string | undefined {
  const versions = members.flatMap(({ weightVersion }) => weightVersion ?? [])
  return versions.reduce<string | undefined>(
    (best, version) =>
      (parseVersionNumber(version) ?? -1) >= (parseVersionNumber(best ?? '') ?? -1) ? version : best,
    undefined,
  )
}

function parseVersionNumber(version: string): number | undefined {
  const digits = /\d{1,15}$/.exec(version)?.[0]
  return digits === undefined ? undefined : Number(digits)
}

/** Adds up the series of a counter. @param outcome restricts the sum to this value of the label `outcome` */
function sumSeries(samples: Iterable<MetricSample>, outcome?: string): number {
  let total = 0
  for (const { labels, value } of samples)
    if (outcome === undefined || labels.some(([name, text]) => name === 'outcome' && text === outcome))
      total += value
  return total
}

/** The metrics of one proxy, with the observers that update them. */
export class ProxyMetrics implements Disposable {
  readonly #metrics = new Metrics()
  readonly #turns = new TurnWatch(this.#metrics)
  readonly #process = new ProcessReader()
  /** The values, at the last scrape, of counters that other parts maintain. */
  readonly #seen = new Map<string, number>()

  /** Wraps a store. @returns the store to use in place of `store` */
  watchStore(store: TurnStore): TurnStore {
    return this.#turns.watchStore(store)
  }

  /** Wraps a backend. @returns the backend to use in place of `backend` */
  watchBackend<T extends Backend>(backend: T): T {
    return this.#turns.watchBackend(backend)
  }

  readonly dispatch: DispatchObserver = {
    recordWait: (ms) => this.#metrics.queueWait.observe(ms / 1_000),
    countFailover: () => this.#metrics.failovers.add(1),
    countEjection: () => this.#metrics.ejections.add(1),
    countRejection: (code) => this.#metrics.queueRefusals.add(1, code),
  }

  countCommit(operations: number, tookMs: number): void {
    this.#metrics.commitOperations.observe(operations)
    this.#metrics.commitTime.observe(tookMs / 1_000)
  }

  /** Counts a verified turn. @param meanDifference mean difference of its logprobs in nats; undefined: not compared */
  countVerification(verdict: string, meanDifference: number | undefined): void {
    this.#metrics.verified.add(1, verdict)
    if (meanDifference !== undefined) this.#metrics.verifiedDifference.observe(meanDifference)
  }

  /** Counts a negative control. @param isCaught whether the engine detected that the prompt had been altered */
  countControl(isCaught: boolean): void {
    this.#metrics.verifyControls.add(1, String(isCaught))
  }

  /** Logs the throughput of each minute with traffic. @returns a function that stops it */
  logThroughput(logger: Logger, backend: Backend, clock: Clock = systemClock): () => void {
    const { turns, completionTokens } = this.#metrics
    return logThroughput({
      logger,
      clock,
      readTotals: () => ({
        requests: sumSeries(turns.listSamples()),
        failed: sumSeries(turns.listSamples(), 'failed'),
        sampled_tokens: sumSeries(completionTokens.listSamples()),
      }),
      readLoad: () => ({ in_flight: this.#turns.openCount, waiting: backend.getStatus().queued }),
    })
  }

  countWorkerConnection(): void {
    this.#metrics.connections.add(1)
  }

  /** Returns the metrics, as the routes of the HTTP server use them. */
  createSource(parts: ScrapeSources): MetricsSource {
    return {
      expose: (accept) => this.#expose(parts, accept),
      countFailedRequest: (code) => this.#metrics.httpErrors.add(1, code),
      countRow: ({ weight_version_min: oldest, unversioned_turns: unversioned }, trainerVersion) => {
        const served = trainerVersion ?? findNewest(parts.backend.getStatus().members)
        if (unversioned > 0) this.#metrics.unversionedRows.add(1)
        const versions = oldest === null ? undefined : computeStaleness(oldest, served)
        if (versions !== undefined) this.#metrics.rowStaleness.observe(versions)
      },
    }
  }

  async #expose(parts: ScrapeSources, accept: string | undefined): Promise<Exposition> {
    const metrics = this.#metrics
    const { backend, databasePath, prompts, store, rollouts } = parts
    readBackend(metrics, backend, this.#turns.openCount)
    for (const [reason, count] of Object.entries(prompts.getCounts())) {
      metrics.prompts.add(this.#takeIncrease(`prompts ${reason}`, count), reason)
    }
    if (rollouts) this.#readRollouts(rollouts)
    metrics.moves.add(this.#takeIncrease('moves', backend.getStatus().moves ?? 0))
    metrics.buildInfo.set(1, VERSION, backend.mode, process.versions.node)
    await Promise.all([this.#process.read(metrics), readSessions(metrics, store)])
    if (databasePath !== undefined) await readFiles(metrics, databasePath)
    return expose(metrics.families, accept)
  }

  #readRollouts({ running, waiting, ended, seconds, tries }: RolloutCounts): void {
    const metrics = this.#metrics
    metrics.rollouts.set(running, 'running')
    metrics.rollouts.set(waiting, 'waiting')
    for (const [outcome, count] of Object.entries(ended))
      metrics.rolloutsEnded.add(this.#takeIncrease(`rollouts ${outcome}`, count), outcome)
    metrics.rolloutSeconds.add(this.#takeIncrease('rollout seconds', seconds))
    metrics.rolloutTries.add(this.#takeIncrease('rollout tries', tries))
  }

  [Symbol.dispose](): void {
    this.#process[Symbol.dispose]()
  }

  /** Returns the increase of a counter since the last scrape. */
  #takeIncrease(name: string, count: number): number {
    const before = this.#seen.get(name) ?? 0
    this.#seen.set(name, count)
    return count - before
  }
}
