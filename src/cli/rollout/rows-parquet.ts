/** The rows of a run as a Parquet file, made of the file of lines when all samples are in it. */
import type { AgentLoopExtraFields, AgentLoopMetrics } from '../../rollout/agent-loop-output.ts'
import type { Row } from '../../rollout/datasets/parquet-columns.ts'
import { writeParquetGroups } from '../../rollout/datasets/parquet-groups.ts'
import type { Shape } from '../../rollout/datasets/shape.ts'
import type { OutputRow } from './output-row.ts'
import { wholeLines } from './whole-lines.ts'

const INTEGER: Shape = { kind: 'integer' }
const NUMBER: Shape = { kind: 'number' }
const TEXT: Shape = { kind: 'text' }
const BOOLEAN: Shape = { kind: 'boolean' }
const listOf = (of: Shape): Shape => ({ kind: 'list', of })
const struct = (fields: Record<string, Shape>): Shape => ({
  kind: 'struct',
  fields: new Map(Object.entries(fields)),
})

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
  // Its names are the runner's, other ones in each run.
  reward_components: TEXT,
  finish_reason: TEXT,
  finished: BOOLEAN,
  truncated: BOOLEAN,
  prompt_truncated: BOOLEAN,
  weight_version_min: TEXT,
  weight_version_max: TEXT,
}

const COLUMNS: Record<keyof OutputRow, Shape> = {
  task_index: INTEGER,
  sample_index: INTEGER,
  instance_id: TEXT,
  prompt_ids: listOf(INTEGER),
  response_ids: listOf(INTEGER),
  response_mask: listOf(INTEGER),
  response_logprobs: listOf(NUMBER),
  reward_score: NUMBER,
  num_turns: INTEGER,
  metrics: struct(METRICS),
  extra_fields: struct(EXTRA_FIELDS),
}

/** A row group is held in memory. */
const TOKENS_PER_GROUP = 1_000_000

/** @throws ProxyError `start_failed` */
export function writeRowsParquet(path: string, linesPath: string): Promise<void> {
  return writeParquetGroups(path, struct(COLUMNS), groupsOf(linesPath))
}

async function* groupsOf(linesPath: string): AsyncGenerator<Row[]> {
  let [group, tokens]: [Row[], number] = [[], 0]
  for await (const line of wholeLines(linesPath)) {
    const row = JSON.parse(line) as OutputRow & Row
    group.push(row)
    tokens += row.prompt_ids.length + row.response_ids.length
    if (tokens < TOKENS_PER_GROUP) continue
    yield group
    group = []
    tokens = 0
  }
  if (group.length > 0) yield group
}
