/**
 * Writes the rows of a run as columns to a Parquet or Arrow file, from the file of lines after all samples are
 * complete.
 */
import type { AgentLoopExtraFields, AgentLoopMetrics } from '../../rollout/agent-loop-output.ts'
import { readCompleteLines } from '../../rollout/datasets/complete-lines.ts'
import {
  BOOLEAN,
  DETAIL_COLUMNS,
  INTEGER,
  listOf,
  NUMBER,
  struct,
  TEXT,
  TOKEN_COLUMNS,
  writeRowColumns,
} from '../../rollout/datasets/row-columns.ts'
import type { Shape } from '../../rollout/datasets/shape.ts'
import type { RowDetailsJson } from '../../rollout/row-details.ts'
import type { OutputRow } from './output-row.ts'

const METRICS: Record<keyof AgentLoopMetrics, Shape> = {
  agent_seconds: NUMBER,
  tries: INTEGER,
  failed: INTEGER,
  inert: INTEGER,
  num_rows: INTEGER,
  inexact_turns: INTEGER,
}

const EXTRA_FIELDS: Record<keyof AgentLoopExtraFields, Shape> = {
  trial_id: TEXT,
  session_id: TEXT,
  agent_status: TEXT,
  error: TEXT,
  row: INTEGER,
  line: TEXT,
  // The runner defines the names, so they differ between runs.
  reward_components: TEXT,
  turn_rewards: listOf(struct({ start: INTEGER, end: INTEGER, reward: NUMBER })),
  finish_reason: TEXT,
  finished: BOOLEAN,
  truncated: BOOLEAN,
  prompt_truncated: BOOLEAN,
  weight_version_min: TEXT,
  weight_version_max: TEXT,
}

// The command requests no images: the file would contain each image once per row.
const COLUMNS: Record<Exclude<keyof OutputRow, keyof RowDetailsJson | 'images'>, Shape> = {
  task_index: INTEGER,
  sample_index: INTEGER,
  instance_id: TEXT,
  task_digest: TEXT,
  ...TOKEN_COLUMNS,
  reward_score: NUMBER,
  num_turns: INTEGER,
  metrics: struct(METRICS),
  extra_fields: struct(EXTRA_FIELDS),
}

/** Writes the columns of a file of lines. @throws ProxyError `start_failed` */
export async function writeColumns(path: string, linesPath: string): Promise<void> {
  const columns = { ...COLUMNS, ...(await findDetailColumns(linesPath)) }
  await writeRowColumns(path, columns, readCompleteLines(linesPath))
}

/** Finds the token data columns by their names in the text, which is far cheaper than parsing it twice. */
async function findDetailColumns(linesPath: string): Promise<Record<string, Shape>> {
  const details: Record<keyof RowDetailsJson, Shape> = DETAIL_COLUMNS
  const missing = new Set(Object.keys(details))
  for await (const line of readCompleteLines(linesPath)) {
    for (const name of missing) if (line.includes(`"${name}":`)) missing.delete(name)
  }
  return Object.fromEntries(Object.entries(details).filter(([name]) => !missing.has(name)))
}
