/**
 * Consumers let the processes of a trainer share completed sessions. A process leases sessions, trains on them and
 * acknowledges them. Unacknowledged sessions are leased again after their lease expires; acknowledged ones never are.
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
} from '../../store/port/consumers.ts'
import { matchesFilter } from '../../store/port/session-list.ts'
import { getGroupValue } from '../../store/port/session-summary.ts'
import type { SessionRecord, TurnStore } from '../../store/port/turn-store.ts'
import type { Activity } from '../state/activity.ts'

/** Number of items examined together. */
const PAGE = 200

/** The parameters of a lease. */
export interface LeaseRequest {
  readonly consumer: Consumer
  readonly leaseId: string
  readonly leaseMs: number
}

/** The progress of one fetch. */
export interface FetchProgress {
  /** Trees that the fetch has leased and does not examine again. */
  readonly leasedTrees: Set<number>
  /** Sessions of incomplete groups that the fetch discarded. */
  incomplete: number
}

/** Sessions that are leased together: one session, or all of a group. */
export type LeaseUnit = readonly AvailableSession[]

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

export class Consumers {
  readonly #store: ConsumersStore
  readonly #activity: Activity
  readonly lateRewards: LateRewards

  constructor(store: ConsumersStore, activity: Activity) {
    this.#store = store
    this.#activity = activity
    this.lateRewards = new LateRewards(activity)
  }

  /** @throws ProxyError `consumer_exists` if a consumer of this name has another selection */
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

  /** @throws ProxyError `consumer_not_found` */
  async get(name: string): Promise<Consumer> {
    const consumer = await this.#store.getConsumer(name)
    if (consumer === undefined) throw createNoConsumerError(name)
    return consumer
  }

  /** @throws ProxyError `consumer_not_found` */
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

  /** @returns see {@link LeaseChange}. @throws ProxyError `consumer_not_found` */
  change(change: Omit<LeaseChange, 'nowMs'>): Promise<string[]> {
    return this.#store.changeLease({ ...change, nowMs: Date.now() })
  }

  /**
   * Leases the next units in the order in which sessions ended, after those that the lease already includes.
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
      const trees = new Set(await this.#lease(lease, units))
      for (const unit of units) {
        // Another process leased the unit first.
        if (!unit.every(({ key }) => trees.has(key.tree))) continue
        taken.push(unit)
        for (const { key } of unit) progress.leasedTrees.add(key.tree)
      }
    }
    return taken
  }

  /**
   * Leases as {@link take} does, but waits for sessions. Returns at the deadline, possibly with nothing.
   * @throws `signal.reason`
   */
  async waitAndTake(
    lease: LeaseRequest,
    limit: number,
    progress: FetchProgress,
    { untilMs, signal }: { untilMs: number; signal: AbortSignal },
  ): Promise<LeaseUnit[]> {
    while (true) {
      signal.throwIfAborted()
      // Subscribe before reading, so that no end is missed between the two.
      using next = waitForNextEnd(this.#activity, untilMs, signal)
      const taken = await this.take(lease, limit, progress)
      if (taken.length > 0 || performance.now() >= untilMs) return taken
      await next.ready
    }
  }

  async #findSingles(
    lease: LeaseRequest,
    limit: number,
    { leasedTrees }: FetchProgress,
  ): Promise<LeaseUnit[]> {
    const units: LeaseUnit[] = []
    for await (const own of this.#ownPages(lease)) {
      for (const found of own) if (!leasedTrees.has(found.key.tree)) units.push([found])
      if (units.length >= limit) break
    }
    return units.slice(0, limit)
  }

  /**
   * Assigns each session to its group when it is first seen. The store counts the members of groups, so that a fetch
   * reads no sessions of incomplete groups.
   */
  async #sortIntoGroups(lease: LeaseRequest): Promise<void> {
    const { name, selection } = lease.consumer
    for await (const own of this.#ownPages(lease)) {
      const members = own.map(({ key, session }) => ({ key, group: hashGroup(session, selection.groupBy!) }))
      if (members.length > 0) await this.#store.putIntoGroups(name, members)
    }
  }

  async #findGroups(lease: LeaseRequest, limit: number, progress: FetchProgress): Promise<LeaseUnit[]> {
    const { consumer, leaseId } = lease
    const { groupSize: size, groupTimeoutMs: timeoutMs } = consumer.selection
    const { units, stale } = await this.#store.findGroups({
      ...{ consumer: consumer.name, leaseId, size, timeoutMs, nowMs: Date.now() },
      // Read in batches to limit memory use.
      limit: Math.min(limit, Math.ceil(PAGE / size)),
      except: [...progress.leasedTrees],
    })
    if (stale.length > 0)
      progress.incomplete += await this.#store.discardGroups(consumer.name, stale, Date.now())
    return units
  }

  /** Reads the available sessions page by page and acknowledges those that the selection excludes. */
  async *#ownPages(lease: LeaseRequest): AsyncGenerator<AvailableSession[]> {
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

  #lease({ consumer, leaseId, leaseMs }: LeaseRequest, units: readonly LeaseUnit[]): Promise<number[]> {
    const keys = units.map((unit) => unit.map(({ key }) => key))
    return this.#store.leaseSessions({
      ...{ consumer: consumer.name, leaseId, units: keys, leaseMs, nowMs: Date.now() },
    })
  }

  /**
   * Acknowledges sessions outside the selection, so that each is examined once: the selection reads only properties
   * that never change.
   */
  async #acknowledgeForeign(lease: LeaseRequest, foreign: LeaseUnit): Promise<void> {
    const own = { ...lease, leaseId: `passed over by ${lease.leaseId}` }
    const units = foreign.map((one) => [one])
    const passed = new Set(await this.#lease(own, units))
    const sessionIds = foreign
      .filter(({ key }) => passed.has(key.tree))
      .map(({ session }) => session.sessionId)
    const change = { consumer: lease.consumer.name, leaseId: own.leaseId, sessionIds }
    await this.change({ ...change, to: 'acknowledged', leaseMs: 0 })
  }
}

function belongs(session: SessionRecord, { metadata, groupBy }: ConsumerSelection): boolean {
  return (
    matchesFilter(session, { metadata }) &&
    (groupBy === null || getGroupValue(session, groupBy) !== undefined)
  )
}

/** Returns a hash of the value that the sessions of a group share: values may exceed the size of an index entry. */
function hashGroup(session: SessionRecord, groupBy: string): string {
  return hash('sha256', JSON.stringify(getGroupValue(session, groupBy)), 'base64url')
}

/** Polling interval: no event reports that a lease expired or that a session of another node ended. */
const POLL_INTERVAL_MS = 1_000

/** Delay that combines ends in quick succession into one read. */
const DEBOUNCE_MS = 50

/**
 * Waits for the next time to read ended sessions.
 * @param untilMs deadline on the process's monotonic clock, at which sessions are read once more
 * @returns `ready` resolves when sessions should be read again or the signal is aborted
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

/** Number of sessions tracked. The reward of a session that others have displaced is not counted. */
const MAX_SESSIONS = 100_000

/** Counts rewards set after a consumer fetched the session without one. The session is not delivered again. */
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

  /** Number of late rewards since the process started. */
  get count(): number {
    return this.#count
  }

  /** Records that a consumer has fetched the session with this reward. */
  recordDelivery(sessionId: string, reward: object | null): void {
    if (reward === null) this.#unrewarded.set(sessionId, true)
    else this.#unrewarded.delete(sessionId)
  }
}
