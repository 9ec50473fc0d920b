import type Database from 'better-sqlite3'

/** The statements that undo each migration of the schema, by the version that it creates. */
const UNDO: Readonly<Record<number, readonly string[]>> = {
  3: ['open_turns', 'failed_turns', 'inexact_turns', 'sampled_tokens'].map(
    (column) => `ALTER TABLE sessions DROP COLUMN ${column}`,
  ),
  4: ['ALTER TABLE turns DROP COLUMN prompt_node'],
  5: ['DROP TABLE details', 'ALTER TABLE sessions DROP COLUMN record'],
  6: ['policies', 'reward_lines'].map((column) => `ALTER TABLE sessions DROP COLUMN ${column}`),
  7: [
    'ALTER TABLE turns DROP COLUMN ids_sum',
    'ALTER TABLE turns DROP COLUMN turn_sum',
    'ALTER TABLE nodes DROP COLUMN node_sum',
    'ALTER TABLE details DROP COLUMN detail_sum',
    'ALTER TABLE sessions DROP COLUMN reward_sum',
  ],
  8: ['ALTER TABLE sessions DROP COLUMN key_tag'],
  9: ['DROP TABLE blob_uses', 'DROP TABLE blobs', 'ALTER TABLE texts DROP COLUMN blobs'],
  10: ['ALTER TABLE sessions DROP COLUMN edited_calls'],
  12: ['ALTER TABLE sessions DROP COLUMN limits'],
  11: ['ALTER TABLE sessions DROP COLUMN reward_turns'],
  13: ['DROP INDEX sessions_by_end', 'DROP TABLE consumer_sessions', 'DROP TABLE consumers'],
  14: ['DROP INDEX sessions_by_tree'],
  15: ['ALTER TABLE sessions DROP COLUMN marks'],
  16: ['DROP TABLE imports'],
  18: ['ALTER TABLE sessions DROP COLUMN continue_responses'],
  17: ['DROP INDEX consumer_sessions_by_group', 'ALTER TABLE consumer_sessions DROP COLUMN group_hash'],
}

/** Reverts the database to the schema of an earlier program. */
export function toVersion(db: Database.Database, version: number): void {
  const now = db.pragma('user_version', { simple: true }) as number
  for (let step = now; step > version; step -= 1) {
    for (const sql of UNDO[step] ?? []) db.exec(sql)
  }
  db.pragma(`user_version = ${version}`)
}
