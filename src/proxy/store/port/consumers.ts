/**
 * Port: consumers of completed sessions. A consumer is a name under which a trainer's processes share them: each session is
 * leased to one of them at a time, in the order in which sessions ended, until one acknowledges it. Everything is kept by a
 * session's tree, which a reset replaces: what the session comes to after one is new to every consumer.
 */
import { ProxyError } from '../../../base/errors.ts'
import type { SessionRecord } from './session-record.ts'

export interface Consumer {
  /** Unique; that of a run's begins with what the ids of the run's sessions begin with. */
  name: string
  /** Only sessions whose ids begin with it. */
  idPrefix: string
  /** Milliseconds since the epoch, as {@link sinceMs}. */
  createdAtMs: number
  /** Only sessions that ended then or later. */
  sinceMs: number
  /** So long after its end a session outlives its time to live, unless the consumer has acknowledged it. */
  holdMs: number
  selection: ConsumerSelection
}

/** What makes a session none of a consumer's, or not yet. */
export interface ConsumerSelection {
  /** Only sessions whose metadata has each of these top-level values. */
  metadata: Record<string, string | number | boolean>
  /** Sessions with one value under this metadata key are given together, `groupSize` at a time; null: one by one. */
  groupBy: string | null
  groupSize: number
  /** A group that is incomplete is discarded this long after the last of its sessions ended. */
  groupTimeoutMs: number
  /** Only when it has a reward. */
  rewarded: boolean
}

/** A week; also of consumers that were created before there was a timeout. */
export const DEFAULT_GROUP_TIMEOUT_MS = 604_800_000

/** Numbers of the store's own. */
export interface SessionKey {
  row: number
  tree: number
}

/** A completed session that a consumer has not acknowledged, and nobody else has a lease of. */
export interface AvailableSession {
  key: SessionKey
  session: SessionRecord
  /** How often it was leased, with the lease that is asked for. */
  deliveries: number
}

/** Where a page of available sessions ended. */
export interface EndPlace {
  endedAtMs: number
  tree: number
}

export interface AvailableQuery {
  consumer: string
  /** What this lease has counts as available. */
  leaseId: string
  after: EndPlace
  limit: number
  nowMs: number
  /** Whether sessions without a reward are left out. Default: false. */
  rewarded?: boolean
  /** Whether sessions that were put into a group are left out. Default: false. */
  ungrouped?: boolean
}

/** A session that a consumer waits for the others of its group of. */
export interface GroupMember {
  key: SessionKey
  /** The same for all sessions of a group; at most 64 characters. */
  group: string
}

export interface GroupQuery {
  consumer: string
  leaseId: string
  size: number
  /** Units, at most. */
  limit: number
  /** Trees that are left out. */
  except: readonly number[]
  /** Incomplete groups are stale this long after the last of their sessions ended, or was released. */
  timeoutMs: number
  nowMs: number
}

export interface FoundGroups {
  /** In the order in which they became complete; the members of each in the order of their ends. */
  units: AvailableSession[][]
  /** Some of the stale groups. */
  stale: string[]
}

export interface NewLease {
  consumer: string
  leaseId: string
  /** Each is leased as a whole, or not at all. */
  units: readonly (readonly SessionKey[])[]
  leaseMs: number
  nowMs: number
}

export interface LeaseChange {
  consumer: string
  /** null: every lease of the consumer, with `released` alone. */
  leaseId: string | null
  /** null: all that the lease has. */
  sessionIds: readonly string[] | null
  /** `acknowledged`: never given again; `released`: given again at once; `extended`: by `leaseMs` from now. */
  to: 'acknowledged' | 'released' | 'extended'
  leaseMs: number
  nowMs: number
}

/** Sessions by what a consumer has to do with them. */
export interface ConsumerCounts {
  available: number
  leased: number
  acknowledged: number
  /** Of `acknowledged`: sessions of groups that were discarded, as they stayed incomplete. */
  discarded: number
}

/** What a consumer has of a session: a lease, or its acknowledgement. */
export interface GivenSession {
  /** The consumer's name. */
  consumer: string
  leaseId: string
  /** null: acknowledged. */
  leasedUntilMs: number | null
  deliveries: number
}

export interface ConsumerReader {
  getConsumer(name: string): Promise<Consumer | undefined>
  /** By name; of those whose sessions' ids begin with the prefix. */
  listConsumers(idPrefix: string): Promise<Consumer[]>
  /** In the order in which they ended; whatever the consumer's selection says. */
  availableSessions(query: AvailableQuery): Promise<AvailableSession[]>
  /** Finds groups at a cost that does not grow with the sessions of incomplete ones, but for a scan of an index. */
  findGroups(query: GroupQuery): Promise<FoundGroups>
  /** `available` as {@link availableSessions} has it. @returns undefined: there is no such consumer */
  countForConsumer(name: string, nowMs: number): Promise<ConsumerCounts | undefined>
  /** Returns the leases and acknowledgements of a session since its last reset. */
  givenSessions(sessionId: string): Promise<GivenSession[]>
}

/**
 * Leases run by `nowMs`, or in a database of several proxies by its own clock. What was asked for twice, because nobody knew
 * what had become of it, has happened once.
 */
export interface ConsumerStore {
  /** Creates it, or finds the one of this name, which is not changed. */
  createConsumer(consumer: Consumer): Promise<{ created: boolean; consumer: Consumer }>
  /** @returns whether there was such a consumer */
  deleteConsumer(name: string): Promise<boolean>
  /** @returns the trees of what it has leased now. @throws ProxyError `consumer_not_found` */
  leaseSessions(lease: NewLease): Promise<number[]>
  /** Puts available sessions into groups, in which they stay. @throws ProxyError `consumer_not_found` */
  putIntoGroups(consumer: string, members: readonly GroupMember[]): Promise<void>
  /**
   * Acknowledges the available sessions of groups.
   * @returns the number of sessions. @throws ProxyError `consumer_not_found`
   */
  discardGroups(consumer: string, groups: readonly string[], nowMs: number): Promise<number>
  /**
   * A lease that has run out may be changed as long as nobody else has leased the session.
   * @returns the ids of the sessions that are as they should be. @throws ProxyError `consumer_not_found`
   */
  changeLease(change: LeaseChange): Promise<string[]>
  /**
   * Adds leases and acknowledgements of a session that another store has. Those of consumers that do not exist are left out;
   * an acknowledgement on either side stays, and so does a lease of this store.
   */
  putGiven(sessionId: string, given: readonly GivenSession[]): Promise<void>
}

export function noConsumer(name: string): ProxyError {
  return new ProxyError('consumer_not_found', `There is no consumer '${name}': create it first`)
}

/** Before all that has ended. */
export const FIRST_END: EndPlace = { endedAtMs: Number.MIN_SAFE_INTEGER, tree: 0 }
