/**
 * The port of consumers of completed sessions. A consumer is a name under which a trainer's processes share sessions:
 * each session is leased to one of them at a time, in the order in which sessions ended, until it is acknowledged.
 * Leases and acknowledgements belong to a session's tree (its turns). A reset replaces the tree, which makes the
 * session new to every consumer.
 */
import { ProxyError } from '../../../base/errors.ts'
import type { SessionRecord } from './session-record.ts'

/** A consumer, with the conditions for the sessions that it receives. */
export interface Consumer {
  /** A unique name; that of a run's consumer begins with the prefix of the run's session ids. */
  name: string
  /** Restricts the consumer to sessions whose ids have this prefix. */
  idPrefix: string
  /** Milliseconds since the epoch, like {@link sinceMs}. */
  createdAtMs: number
  /** Restricts the consumer to sessions that ended at this time or later. */
  sinceMs: number
  /**
   * How long after its end a session is retained, even if its time to live has expired, unless the consumer has
   * acknowledged it.
   */
  holdMs: number
  selection: ConsumerSelection
}

/** The conditions under which a consumer receives sessions. */
export interface ConsumerSelection {
  /** Restricts the consumer to sessions whose metadata has each of these top-level values. */
  metadata: Record<string, string | number | boolean>
  /** Delivers sessions with equal values under this metadata key together, `groupSize` at a time; null: one by one. */
  groupBy: string | null
  groupSize: number
  /** A group that is incomplete is discarded this long after the last of its sessions ended. */
  groupTimeoutMs: number
  /** Restricts the consumer to sessions that have a reward. */
  rewarded: boolean
}

/** One week; it also applies to consumers that were created before the timeout existed. */
export const DEFAULT_GROUP_TIMEOUT_MS = 604_800_000

/** The store's internal ids of a session. */
export interface SessionKey {
  row: number
  tree: number
}

/** A completed session that a consumer has not acknowledged, and that no lease covers except the requested one. */
export interface AvailableSession {
  key: SessionKey
  session: SessionRecord
  /** How many times it has been leased, including the requested lease. */
  deliveries: number
}

/** The position at which a page of available sessions ended: the end and the tree of its last session. */
export interface EndPosition {
  endedAtMs: number
  tree: number
}

/** A query of the sessions that a consumer could lease. */
export interface AvailableQuery {
  consumer: string
  /** Sessions of this lease count as available. */
  leaseId: string
  after: EndPosition
  limit: number
  nowMs: number
  /** Whether to omit sessions without a reward. Default: false. */
  rewarded?: boolean
  /** Whether to omit sessions that are in a group. Default: false. */
  ungrouped?: boolean
}

/** A session to put into a group of sessions that are delivered together. */
export interface GroupMember {
  key: SessionKey
  /** The id of the group, equal for all its sessions; at most 64 characters. */
  group: string
}

/** A query of the groups that a consumer could lease. */
export interface GroupQuery {
  consumer: string
  leaseId: string
  size: number
  /** The maximum number of units, each of which is `size` sessions of one group, and of stale groups. */
  limit: number
  /** The trees of the sessions to omit. */
  except: readonly number[]
  /** The time after which an incomplete group is stale, counted from its last session's end or release. */
  timeoutMs: number
  nowMs: number
}

/** Units of complete groups, and groups that stayed incomplete. */
export interface GroupsPage {
  /** The units, ordered by the end of their last session; the sessions of each by their ends. */
  units: AvailableSession[][]
  /** The ids of some of the stale groups, in no particular order. */
  stale: string[]
}

/** A lease to create. */
export interface NewLease {
  consumer: string
  leaseId: string
  /** Each unit is leased completely or not at all. */
  units: readonly (readonly SessionKey[])[]
  leaseMs: number
  nowMs: number
}

/** The sessions of a {@link NewLease} that were leased. */
export interface LeaseGrant {
  trees: number[]
  /** The time at which their lease ends. */
  untilMs: number
}

/** A change of leases: their acknowledgement, release or extension. */
export interface LeaseChange {
  consumer: string
  /** null: every lease of the consumer; for `released` only. */
  leaseId: string | null
  /** null: all sessions of the lease. */
  sessionIds: readonly string[] | null
  /** `acknowledged`: never delivered again; `released`: available immediately; `extended`: by `leaseMs` from now. */
  to: 'acknowledged' | 'released' | 'extended'
  leaseMs: number
  /** Excludes sessions whose lease ends at another time: it was renewed or extended since. Default: none. */
  leasedUntilMs?: number | null
  nowMs: number
}

/** The number of sessions by their state for a consumer. */
export interface ConsumerCounts {
  available: number
  leased: number
  acknowledged: number
  /** The part of `acknowledged` whose groups were discarded because they stayed incomplete. */
  discarded: number
}

/** The state of a session for a consumer: a lease, or its acknowledgement. */
export interface ConsumerSession {
  /** The name of the consumer. */
  consumer: string
  leaseId: string
  /** null: acknowledged. */
  leasedUntilMs: number | null
  deliveries: number
}

/** The read operations of consumers. */
export interface ConsumerReader {
  getConsumer(name: string): Promise<Consumer | undefined>
  /** Returns the consumers whose own `idPrefix` begins with this one, sorted by name. */
  listConsumers(idPrefix: string): Promise<Consumer[]>
  /**
   * Returns available sessions in the order of their ends. It does not apply the consumer's {@link ConsumerSelection}.
   */
  availableSessions(query: AvailableQuery): Promise<AvailableSession[]>
  /**
   * Finds groups. Except for an index scan, the cost does not grow with the number of sessions in incomplete groups.
   */
  findGroups(query: GroupQuery): Promise<GroupsPage>
  /** Counts sessions; `available` as in {@link availableSessions}. @returns undefined: there is no such consumer */
  countForConsumer(name: string, nowMs: number): Promise<ConsumerCounts | undefined>
  /** Returns the leases and acknowledgements of a session since its last reset. */
  listSessionStates(sessionId: string): Promise<ConsumerSession[]>
}

export const CONSUMER_READS = [
  'getConsumer',
  'listConsumers',
  'availableSessions',
  'findGroups',
  'countForConsumer',
  'listSessionStates',
] as const satisfies (keyof ConsumerReader)[]

/**
 * Changes consumers and leases. Leases expire by the argument `nowMs`, or by the database's clock if several nodes
 * share the database. All methods are idempotent: repeating one whose outcome is unknown has no further effect.
 */
export interface ConsumerStore {
  /** Creates a consumer, or returns the existing one of this name unchanged. */
  createConsumer(consumer: Consumer): Promise<{ created: boolean; consumer: Consumer }>
  /** Deletes a consumer. @returns whether it existed */
  deleteConsumer(name: string): Promise<boolean>
  /** Leases units of sessions, of which other leases may have some. @throws ProxyError `consumer_not_found` */
  leaseSessions(lease: NewLease): Promise<LeaseGrant>
  /** Puts available sessions into groups permanently. @throws ProxyError `consumer_not_found` */
  putIntoGroups(consumer: string, members: readonly GroupMember[]): Promise<void>
  /**
   * Acknowledges the available sessions of groups.
   * @returns the number of sessions. @throws ProxyError `consumer_not_found`
   */
  discardGroups(consumer: string, groups: readonly string[], nowMs: number): Promise<number>
  /**
   * Changes a lease. One that has expired may be changed until another lease covers the session.
   * @returns the ids of the sessions that now have the requested state. @throws ProxyError `consumer_not_found`
   */
  changeLease(change: LeaseChange): Promise<string[]>
  /**
   * Adds leases and acknowledgements of a session from another store. Those of unknown consumers are ignored; an
   * acknowledgement in either store takes precedence, then a lease in this store.
   */
  putSessionStates(sessionId: string, states: readonly ConsumerSession[]): Promise<void>
}

export const CONSUMER_WRITES = [
  'createConsumer',
  'deleteConsumer',
  'leaseSessions',
  'putIntoGroups',
  'discardGroups',
  'changeLease',
  'putSessionStates',
] as const satisfies (keyof ConsumerStore)[]

export function createNoConsumerError(name: string): ProxyError {
  return new ProxyError('consumer_not_found', `There is no consumer '${name}': create it first`)
}

/** The position before all sessions. */
export const FIRST_END: EndPosition = { endedAtMs: Number.MIN_SAFE_INTEGER, tree: 0 }
