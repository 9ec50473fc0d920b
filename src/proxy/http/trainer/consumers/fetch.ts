/** Serves one fetch of a consumer: leases units, and writes their rows with one unit in memory at a time. */
import type { Static } from 'typebox'
import { ProxyError } from '../../../../base/errors.ts'
import type {
  Consumers,
  FetchProgress,
  LeaseRequest,
  LeaseUnit,
} from '../../../session/consumers/consumers.ts'
import type { Trajectory } from '../../../session/trajectories/trajectories.ts'
import type { LeaseChange } from '../../../store/port/consumers.ts'
import type { TurnReader } from '../../../store/port/turn-store.ts'
import { openObject } from '../sessions/json-stream.ts'
import { readTrajectories, type SessionTrajectories } from '../sessions/trajectory-query.ts'
import type { FetchBody } from './schemas.ts'

interface FetchParts {
  consumers: Consumers
  reader: Pick<TurnReader, 'getSession' | 'readSteps' | 'readDetails'>
  onRow(row: Trajectory): void
  /** Called with each damaged session. */
  onDamaged(sessionId: string, error: ProxyError): void
}

interface UnitMember {
  sessionId: string
  deliveries: number
  trajectories: SessionTrajectories
}

/** The sessions of a unit with their trajectories. */
type UnitTrajectories = readonly UnitMember[]

/** One fetch of a consumer: its lease, and the progress of reading the leased units. */
export class ConsumerFetch {
  readonly #parts: FetchParts
  readonly #lease: LeaseRequest
  readonly #body: Static<typeof FetchBody>
  readonly #progress: FetchProgress = { leasedUntilMs: new Map(), incomplete: 0 }
  /** The leased units that are neither in the response nor discarded yet. */
  #waiting: LeaseUnit[] = []
  readonly #discarded = { stale: 0, unversioned: 0 }
  #damaged = 0
  /** The units that are in the response. */
  readonly #returned: LeaseUnit[] = []
  #units = 0

  constructor(parts: FetchParts, lease: LeaseRequest, body: Static<typeof FetchBody>) {
    this.#parts = parts
    this.#lease = lease
    this.#body = body
  }

  /**
   * Waits for the first unit. The others are read while the client reads the response.
   * @returns chunks of one JSON text. If they are not read to the end, the lease is released
   * @throws ProxyError `consumer_not_found`, or `signal.reason`
   */
  async createResponse(signal: AbortSignal): Promise<AsyncGenerator<string>> {
    const untilMs = performance.now() + this.#body.wait_s * 1_000
    try {
      let first: UnitTrajectories | undefined
      do {
        const { limit } = this.#body
        const until = { untilMs, signal }
        this.#waiting = await this.#parts.consumers.waitAndTake(this.#lease, limit, this.#progress, until)
        first = await this.#next()
      } while (first === undefined && performance.now() < untilMs)
      signal.throwIfAborted()
      return this.#toWire(first)
    } catch (error) {
      await this.#release()
      throw error
    }
  }

  async *#toWire(first: UnitTrajectories | undefined): AsyncGenerator<string> {
    let isComplete = false
    try {
      yield `${openObject({ lease_id: this.#lease.leaseId })},"sessions":[`
      let separator = ''
      for (let unit = first; unit !== undefined; unit = await this.#next()) {
        for (const session of unit) {
          yield separator
          yield* this.#writeSession(session)
          separator = ','
        }
      }
      // They are not in `discarded`, because Python clients of earlier releases reject unknown keys there.
      const others = `"incomplete":${this.#progress.incomplete},"damaged":${this.#damaged}`
      yield `],"discarded":${JSON.stringify(this.#discarded)},${others}}`
      isComplete = true
    } finally {
      if (!isComplete) await this.#release()
    }
  }

  /**
   * Writes a session of the last unit in `#returned`. Its details are read meanwhile: if one is damaged, the response
   * breaks, but the next fetch does not.
   */
  async *#writeSession({ sessionId, deliveries, trajectories }: UnitMember): AsyncGenerator<string> {
    try {
      yield* trajectories.toWire(this.#parts.onRow, { deliveries })
    } catch (error) {
      if (isDamagedError(error)) await this.#discardDamaged(this.#returned.pop()!, sessionId, error)
      throw error
    }
  }

  /** Reads the next unit. @returns undefined if the limit is reached or no unit is left */
  async #next(): Promise<UnitTrajectories | undefined> {
    while (this.#units < this.#body.limit) {
      const [unit, ...rest] = this.#waiting
      if (unit === undefined) {
        const missing = this.#body.limit - this.#units
        this.#waiting = await this.#parts.consumers.take(this.#lease, missing, this.#progress)
        if (this.#waiting.length === 0) return undefined
        continue
      }
      const read = await this.#read(unit)
      this.#waiting = rest
      if (read !== undefined) return read
    }
    return undefined
  }

  /** Reads a unit. @returns undefined if it is discarded, or if a session was removed or reset meanwhile */
  async #read(unit: LeaseUnit): Promise<UnitTrajectories | undefined> {
    const sessions = await this.#readAll(unit)
    if (sessions === undefined) return undefined
    const reason = judgeStaleness(sessions, this.#body.min_weight_version)
    if (reason !== undefined) {
      this.#discarded[reason] += unit.length
      await this.#change('acknowledged', getSessionIds(unit))
      return undefined
    }
    this.#units += 1
    this.#returned.push(unit)
    for (const { session } of unit)
      this.#parts.consumers.lateRewards.recordDelivery(session.sessionId, session.reward)
    return sessions
  }

  /** Reads the sessions of a unit; releases it if one was removed or reset, and discards it if one is damaged. */
  async #readAll(unit: LeaseUnit): Promise<UnitTrajectories | undefined> {
    const sessions: UnitMember[] = []
    for (const { session, deliveries } of unit) {
      const { sessionId } = session
      try {
        const trajectories = await readTrajectories(this.#parts.reader, session, this.#body)
        sessions.push({ sessionId, deliveries, trajectories })
      } catch (error) {
        if (isDamagedError(error)) await this.#discardDamaged(unit, sessionId, error)
        else if (error instanceof ProxyError && error.code === 'session_not_found')
          await this.#releaseUnits([unit])
        else throw error
        return undefined
      }
    }
    return sessions
  }

  /** Discards a unit with a damaged session, at which each later fetch would fail otherwise. */
  async #discardDamaged(unit: LeaseUnit, sessionId: string, error: ProxyError): Promise<void> {
    this.#parts.onDamaged(sessionId, error)
    this.#damaged += unit.length
    await this.#change('acknowledged', getSessionIds(unit))
  }

  #release(): Promise<void> {
    return this.#releaseUnits([...this.#returned, ...this.#waiting])
  }

  /**
   * Releases sessions, unless their lease was renewed since: the client has repeated the fetch, whose response it
   * received, before this connection was found dead.
   */
  async #releaseUnits(units: readonly LeaseUnit[]): Promise<void> {
    const byEnd = Map.groupBy(units.flat(), ({ key }) => this.#progress.leasedUntilMs.get(key.tree)!)
    for (const [leasedUntilMs, sessions] of byEnd) {
      const sessionIds = getSessionIds(sessions)
      await this.#change('released', sessionIds, { leasedUntilMs })
    }
  }

  async #change(
    to: LeaseChange['to'],
    sessionIds: readonly string[],
    options: Pick<LeaseChange, 'leasedUntilMs'> = {},
  ): Promise<void> {
    const { consumer, leaseId } = this.#lease
    await this.#parts.consumers.change({
      ...{ consumer: consumer.name, leaseId, sessionIds, to, leaseMs: 0 },
      ...options,
    })
  }
}

function isDamagedError(error: unknown): error is ProxyError {
  return error instanceof ProxyError && error.code === 'data_damaged'
}

function getSessionIds(unit: LeaseUnit): string[] {
  return unit.map(({ session }) => session.sessionId)
}

/**
 * Returns why the rows of a unit must not be trained on; `stale` has precedence over `unversioned`. Rows without
 * sampled tokens are ignored.
 */
function judgeStaleness(
  unit: UnitTrajectories,
  minVersion: number | undefined,
): 'stale' | 'unversioned' | undefined {
  if (minVersion === undefined) return undefined
  let isUnversioned = false
  for (const { trajectories } of unit) {
    for (const { row } of trajectories.readRows()) {
      if (!row.turns.some(({ start, end }) => end > start)) continue
      const version = Number(row.weight_version_min ?? Number.NaN)
      if (version < minVersion) return 'stale'
      isUnversioned ||= Number.isNaN(version)
    }
  }
  return isUnversioned ? 'unversioned' : undefined
}
