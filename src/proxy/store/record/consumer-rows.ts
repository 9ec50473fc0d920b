/** Rows of `consumers`, and what both adapters do with them. */
import type { AvailableSession, Consumer, ConsumerSelection, GivenSession } from '../port/consumers.ts'
import { type SessionRow, toRecord } from './session-rows.ts'

export interface ConsumerRow {
  name: string
  id_prefix: string
  created_at_ms: number
  since_ms: number
  hold_ms: number
  selection: string
}

/** As the statement that finds them gives them: sessions that a consumer may have. */
export type AvailableRow = SessionRow & { deliveries: number }

export interface GivenRow {
  name: string
  lease_id: string
  leased_until_ms: number | null
  deliveries: number
}

export function toGiven(row: GivenRow): GivenSession {
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
    selection: JSON.parse(row.selection) as ConsumerSelection,
  }
}

export function toConsumerRow(consumer: Consumer): ConsumerRow {
  return {
    name: consumer.name,
    id_prefix: consumer.idPrefix,
    created_at_ms: consumer.createdAtMs,
    since_ms: consumer.sinceMs,
    hold_ms: consumer.holdMs,
    selection: JSON.stringify(consumer.selection),
  }
}

export function toAvailable({ deliveries, ...row }: AvailableRow): AvailableSession {
  return { key: { row: row.id, tree: row.tree }, session: toRecord(row), deliveries }
}
