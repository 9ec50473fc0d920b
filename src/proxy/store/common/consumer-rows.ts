/** Rows of `consumers`, and their conversions, for both adapters. */
import {
  type AvailableSession,
  type Consumer,
  type ConsumerSelection,
  type ConsumerSession,
  DEFAULT_GROUP_TIMEOUT_MS,
} from '../port/consumers.ts'
import { type SessionRow, toRecord } from './session-rows.ts'

export interface ConsumerRow {
  name: string
  id_prefix: string
  created_at_ms: number
  since_ms: number
  hold_ms: number
  selection: string
}

/** A row of the query that finds the sessions available to a consumer. */
export type AvailableRow = SessionRow & { deliveries: number }

/** A session of a unit that {@link ConsumerReader.findGroups} returns; rows of one unit are consecutive. */
export type MemberRow = AvailableRow & { unit: string }

/**
 * The lease id of sessions that were put into a group and not leased yet, and of discarded ones. Lease ids of clients
 * are not empty.
 */
export const NO_LEASE = ''

export interface ConsumerSessionRow {
  name: string
  lease_id: string
  leased_until_ms: number | null
  deliveries: number
}

export function toConsumerSession(row: ConsumerSessionRow): ConsumerSession {
  return {
    ...{ consumer: row.name, leaseId: row.lease_id },
    ...{ leasedUntilMs: row.leased_until_ms, deliveries: row.deliveries },
  }
}

export function toConsumer(row: ConsumerRow): Consumer {
  return {
    name: row.name,
    idPrefix: row.id_prefix,
    createdAtMs: row.created_at_ms,
    sinceMs: row.since_ms,
    holdMs: row.hold_ms,
    selection: withDefaults(JSON.parse(row.selection)),
  }
}

function withDefaults(
  selection: Omit<ConsumerSelection, 'groupTimeoutMs'> & Partial<ConsumerSelection>,
): ConsumerSelection {
  return { ...selection, groupTimeoutMs: selection.groupTimeoutMs ?? DEFAULT_GROUP_TIMEOUT_MS }
}

export function toConsumerRow(consumer: Consumer): ConsumerRow {
  // The default is omitted because a proxy of the previous release compares the complete selection.
  const { groupTimeoutMs, ...selection } = consumer.selection
  const timeout = groupTimeoutMs === DEFAULT_GROUP_TIMEOUT_MS ? {} : { groupTimeoutMs }
  return {
    name: consumer.name,
    id_prefix: consumer.idPrefix,
    created_at_ms: consumer.createdAtMs,
    since_ms: consumer.sinceMs,
    hold_ms: consumer.holdMs,
    selection: JSON.stringify({ ...selection, ...timeout }),
  }
}

export function toAvailableSession({ deliveries, ...row }: AvailableRow): AvailableSession {
  return { key: { row: row.id, tree: row.tree }, session: toRecord(row), deliveries }
}

export function toUnits(rows: readonly MemberRow[]): AvailableSession[][] {
  const units = new Map<string, AvailableSession[]>()
  for (const { unit, ...row } of rows) {
    const members = units.get(unit) ?? []
    members.push(toAvailableSession(row))
    units.set(unit, members)
  }
  return [...units.values()]
}
