/**
 * Consumers, through which the processes of a trainer share completed sessions. A process leases sessions, trains on
 * them and acknowledges them. Unacknowledged sessions are leased again after their lease expires; acknowledged ones are
 * not.
 */
import { hash } from 'node:crypto'
import { isDeepStrictEqual } from 'node:util'
import { ProxyError } from '../../../base/errors.ts'
import { LruCache } from '../../../base/lru-cache.ts'
import {
  type AvailableSession,
  type Consumer,
  type ConsumerCounts,
  type ConsumerSelection,
  createNoConsumerError,
  FIRST_END,
  type LeaseChange,
  type LeaseGrant,
} from '../../store/port/consumers.ts'
import { matchesFilter } from '../../store/port/session-list.ts'
import { getGroupValue } from '../../store/port/session-summary.ts'
import type { SessionRecord, TurnStore } from '../../store/port/turn-store.ts'
import type { Activity } from '../state/activity.ts'

/** The number of sessions, or of groups' members, that are read at a time. */
const PAGE = 200

/** The parameters of a lease. */
export interface LeaseRequest {
  readonly consumer: Consumer
  readonly leaseId: string
  readonly leaseMs: number
}

/** The progress of one fetch, which may call {@link Consumers.take} several times. */
export interface FetchProgress {
  /**
   * The ends of the leases of sessions that the fetch has leased, by the session's tree (as in {@link
   * AvailableSession}). They are not read again.
   */
  readonly leasedUntilMs: Map<number, number>
  /** The number of sessions of incomplete groups that the fetch has discarded. */
  incomplete: number
}

/** Sessions that are leased together: a single session, or all of a group. */
export type LeaseUnit = readonly AvailableSession[]

/** The operations of the store that consumers need. */
type ConsumersStore = Pick<
  TurnStore,
  | 'createConsumer'
  | 'getConsumer'
  | 'listConsumers'
  | 'deleteConsumer'
  | 'countForConsumer'
  | 'availableSessions'
  | 'putIntoGroups'
  | 'findGroups'
  | 'discardGroups'
  | 'leaseSessions'
  | 'changeLease'
>

/** The consumers of the proxy, and their leases. */
export class Consumers {
  readonly #store: ConsumersStore
  readonly #activity: Activity
  readonly lateRewards: LateRewards

  constructor(store: ConsumersStore, activity: Activity) {
    this.#store = store
    this.#activity = activity
    this.lateRewards = new LateRewards(activity)
  }

  /**
   * Creates a consumer, or finds the existing one with the same settings.
   * @throws ProxyError `consumer_exists` if a consumer with this name has other settings
   */
  async create(settings: Omit<Consumer, 'createdAtMs'>): Promise<{ created: boolean; consumer: Consumer }> {
    const { created, consumer } = await this.#store.createConsumer({ ...settings, createdAtMs: Date.now() })
    const hasSameSettings =
      consumer.holdMs === settings.holdMs && isDeepStrictEqual(consumer.selection, settings.selection)
    if (hasSameSettings) return { created, consumer }
    throw new ProxyError(
      'consumer_exists',
      `There is a consumer '${settings.name}' with other settings: delete it first`,
    )
  }

  /** Returns a consumer. @throws ProxyError `consumer_not_found` */
  async get(name: string): Promise<Consumer> {
    const consumer = await this.#store.getConsumer(name)
    if (consumer === undefined) throw createNoConsumerError(name)
    return consumer
  }

  /** Counts sessions by their state for a consumer. @throws ProxyError `consumer_not_found` */
  async count(name: string): Promise<ConsumerCounts> {
    const counts = await this.#store.countForConsumer(name, Date.now())
    if (counts === undefined) throw createNoConsumerError(name)
    return counts
  }

  list(idPrefix: string): Promise<Consumer[]> {
    return this.#store.listConsumers(idPrefix)
  }

  delete(name: string): Promise<boolean> {
    return this.#store.deleteConsumer(name)
  }

  /**
   * Extends, acknowledges or releases leases.
   * @returns the ids of the sessions that now have the requested state
   * @throws ProxyError `consumer_not_found`
   */
  change(change: Omit<LeaseChange, 'nowMs'>): Promise<string[]> {
    return this.#store.changeLease({ ...change, nowMs: Date.now() })
  }

  /**
   * Leases the next units: sessions in the order in which they ended, or groups in the order in which they became
   * complete. Sessions of the lease itself count as available, so that a repeated fetch returns them again.
   * @param limit the maximum number of units
   * @throws ProxyError `consumer_not_found`
   */
  async take(lease: LeaseRequest, limit: number, progress: FetchProgress): Promise<LeaseUnit[]> {
    const isGrouped = lease.consumer.selection.groupBy !== null
    if (isGrouped) await this.#sortIntoGroups(lease)
    const taken: LeaseUnit[] = []
    while (taken.length < limit) {
      const missing = limit - taken.length
      const units = isGrouped
        ? await this.#findGroups(lease, missing, progress)
        : await this.#findSingles(lease, missing, progress)
      if (units.length === 0) return taken
      const leased = await this.#lease(lease, units)
      const trees = new Set(leased.trees)
      for (const unit of units) {
        // A unit of which a session was not leased belongs to another process, which leased it first.
        if (!unit.every(({ key }) => trees.has(key.tree))) continue
        taken.push(unit)
        for (const { key } of unit) progress.leasedUntilMs.set(key.tree, leased.untilMs)
      }
    }
    return taken
  }

  /**
   * Leases as {@link take} does, but waits until there are sessions or the deadline has passed.
   * @param options `untilMs`: the deadline on the process's monotonic clock, at which the result may be empty
   * @throws `signal.reason` after an abort
   */
  async waitAndTake(
    lease: LeaseRequest,
    limit: number,
    progress: FetchProgress,
    options: { untilMs: number; signal: AbortSignal },
  ): Promise<LeaseUnit[]> {
    const { untilMs, signal } = options
    while (true) {
      signal.throwIfAborted()
      // Subscribe before reading, so that an end between the two is not missed.
      using next = waitForNextEnd(this.#activity, untilMs, signal)
      const taken = await this.take(lease, limit, progress)
      if (taken.length > 0 || performance.now() >= untilMs) return taken
      await next.ready
    }
  }

  async #findSingles(
    lease: LeaseRequest,
    limit: number,
    { leasedUntilMs }: FetchProgress,
  ): Promise<LeaseUnit[]> {
    const units: LeaseUnit[] = []
    for await (const own of this.#readSelectedPages(lease)) {
      for (const found of own) if (!leasedUntilMs.has(found.key.tree)) units.push([found])
      if (units.length >= limit) break
    }
    return units.slice(0, limit)
  }

  /**
   * Assigns each available session to its group once. The store counts the members of groups, so that a fetch reads no
   * sessions of incomplete groups.
   */
  async #sortIntoGroups(lease: LeaseRequest): Promise<void> {
    const { name, selection } = lease.consumer
    for await (const own of this.#readSelectedPages(lease)) {
      const members = own.map(({ key, session }) => ({ key, group: hashGroup(session, selection.groupBy!) }))
      if (members.length > 0) await this.#store.putIntoGroups(name, members)
    }
  }

  async #findGroups(lease: LeaseRequest, limit: number, progress: FetchProgress): Promise<LeaseUnit[]> {
    const { consumer, leaseId } = lease
    const { groupSize: size, groupTimeoutMs: timeoutMs } = consumer.selection
    const { units, stale } = await this.#store.findGroups({
      ...{ consumer: consumer.name, leaseId, size, timeoutMs, nowMs: Date.now() },
      // A batch has at most PAGE sessions, which limits memory use.
      limit: Math.min(limit, Math.ceil(PAGE / size)),
      except: [...progress.leasedUntilMs.keys()],
    })
    if (stale.length > 0)
      progress.incomplete += await this.#store.discardGroups(consumer.name, stale, Date.now())
    return units
  }

  /** Yields the available sessions of the selection page by page, and acknowledges the other sessions of each page. */
  async *#readSelectedPages(lease: LeaseRequest): AsyncGenerator<AvailableSession[]> {
    const { consumer, leaseId } = lease
    const { rewarded, groupBy } = consumer.selection
    const query = { consumer: consumer.name, leaseId, limit: PAGE, rewarded, ungrouped: groupBy !== null }
    for (let after = FIRST_END; ; ) {
      const page = await this.#store.availableSessions({ ...query, after, nowMs: Date.now() })
      const own = page.filter(({ session }) => belongs(session, consumer.selection))
      const foreign = page.filter((found) => !own.includes(found))
      if (foreign.length > 0) await this.#acknowledgeForeign(lease, foreign)
      yield own
      const last = page.at(-1)
      if (last === undefined || page.length < PAGE) return
      after = { endedAtMs: last.session.endedAtMs!, tree: last.key.tree }
    }
  }

  #lease({ consumer, leaseId, leaseMs }: LeaseRequest, units: readonly LeaseUnit[]): Promise<LeaseGrant> {
    const keys = units.map((unit) => unit.map(({ key }) => key))
    return this.#store.leaseSessions({
      ...{ consumer: consumer.name, leaseId, units: keys, leaseMs, nowMs: Date.now() },
    })
  }

  /**
   * Acknowledges sessions outside the selection, so that they are not read again: the properties that select a session
   * never change.
   */
  async #acknowledgeForeign(lease: LeaseRequest, foreign: LeaseUnit): Promise<void> {
    const own = { ...lease, leaseId: `passed over by ${lease.leaseId}` }
    const units = foreign.map((one) => [one])
    const passed = new Set((await this.#lease(own, units)).trees)
    const sessionIds = foreign
      .filter(({ key }) => passed.has(key.tree))
      .map(({ session }) => session.sessionId)
    const change = { consumer: lease.consumer.name, leaseId: own.leaseId, sessionIds }
    await this.change({ ...change, to: 'acknowledged', leaseMs: 0 })
  }
}

/** Returns whether a consumer's selection includes the session. */
function belongs(session: SessionRecord, { metadata, groupBy }: ConsumerSelection): boolean {
  return (
    matchesFilter(session, { metadata }) &&
    (groupBy === null || getGroupValue(session, groupBy) !== undefined)
  )
}

/**
 * Returns a hash of the value that the sessions of a group share. The value itself may exceed the maximum size of an
 * index entry.
 */
function hashGroup(session: SessionRecord, groupBy: string): string {
  return hash('sha256', JSON.stringify(getGroupValue(session, groupBy)), 'base64url')
}

/**
 * The polling interval. Polling is necessary because no event reports an expired lease, or the end of a session at
 * another node.
 */
const POLL_INTERVAL_MS = 1_000

/** The delay of a read after an event, so that several ends in quick succession cause one read. */
const DEBOUNCE_MS = 50

/**
 * Waits until ended sessions should be read again.
 * @param untilMs the deadline on the process's monotonic clock, at which sessions are read once more
 * @returns `ready` resolves after an event, at the next poll, or when the signal is aborted
 */
function waitForNextEnd(
  activity: Activity,
  untilMs: number,
  signal: AbortSignal,
): { ready: Promise<void> } & Disposable {
  const { promise, resolve } = Promise.withResolvers<void>()
  const leftMs = untilMs - performance.now()
  const timer = setTimeout(resolve, Math.max(0, Math.min(POLL_INTERVAL_MS, leftMs)))
  let pause: NodeJS.Timeout | undefined
  const stop = activity.listen(({ type }) => {
    if (type === 'session_ended' || type === 'reward') pause ??= setTimeout(resolve, DEBOUNCE_MS)
  })
  const aborted = () => resolve()
  signal.addEventListener('abort', aborted)
  return {
    ready: promise,
    [Symbol.dispose]: () => {
      clearTimeout(timer)
      clearTimeout(pause)
      stop()
      signal.removeEventListener('abort', aborted)
    },
  }
}

/** The maximum number of tracked sessions. A late reward of a session that was evicted is not counted. */
const MAX_SESSIONS = 100_000

/**
 * A counter of late rewards: those set after a consumer has fetched the session without one. Such a session is not
 * delivered again.
 */
class LateRewards {
  readonly #unrewarded = new LruCache<string, true>(MAX_SESSIONS, () => 1)
  #count = 0

  constructor(activity: Activity) {
    activity.listen((event) => {
      if (event.type !== 'reward' || this.#unrewarded.get(event.session_id) === undefined) return
      this.#unrewarded.delete(event.session_id)
      this.#count += 1
    })
  }

  /** The number of late rewards since the process started. */
  get count(): number {
    return this.#count
  }

  /**
   * Records that a consumer has fetched the session.
   * @param reward the reward that was delivered; null: none was set
   */
  recordDelivery(sessionId: string, reward: object | null): void {
    if (reward === null) this.#unrewarded.set(sessionId, true)
    else this.#unrewarded.delete(sessionId)
  }
}
