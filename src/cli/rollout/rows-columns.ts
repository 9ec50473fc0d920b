/**
 * The rows of a run as columns, in a Parquet or an Arrow file, made of the file of lines when all samples are in it.
 */
import type { AgentLoopExtraFields, AgentLoopMetrics } from '../../rollout/agent-loop-output.ts'
import { writeArrowGroups } from '../../rollout/datasets/arrow-file.ts'
import type { Row } from '../../rollout/datasets/parquet-columns.ts'
import { writeParquetGroups } from '../../rollout/datasets/parquet-groups.ts'
import type { Shape } from '../../rollout/datasets/shape.ts'
import type { RowDetailsJson } from '../../rollout/row-details.ts'
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
  turn_rewards: listOf(struct({ start: INTEGER, end: INTEGER, reward: NUMBER })),
  finish_reason: TEXT,
  finished: BOOLEAN,
  truncated: BOOLEAN,
  prompt_truncated: BOOLEAN,
  weight_version_min: TEXT,
  weight_version_max: TEXT,
}

const perToken = (of: Shape): Shape => listOf(listOf(of))

/** Columns that a file has if any of its rows has them. */
const DETAIL_COLUMNS: Record<keyof RowDetailsJson, Shape> = {
  sampling_mask: perToken(INTEGER),
  sampling_mask_logprobs: perToken(NUMBER),
  sampling_logprobs: listOf(NUMBER),
  top_logprob_ids: perToken(INTEGER),
  top_logprobs: perToken(NUMBER),
  prompt_logprob_ids: perToken(INTEGER),
  prompt_logprobs: perToken(NUMBER),
  // The bytes are base64, as in JSON: there are no bytes in lines.
  routed_experts: struct({ dtype: TEXT, shape: listOf(INTEGER), known: perToken(INTEGER), data: TEXT }),
  weight_versions: listOf(struct({ version: TEXT, start: INTEGER, end: INTEGER })),
}

// The command asks for no images: a file would have each once a row.
const COLUMNS: Record<Exclude<keyof OutputRow, keyof RowDetailsJson | 'images'>, Shape> = {
  task_index: INTEGER,
  sample_index: INTEGER,
  instance_id: TEXT,
  task_digest: TEXT,
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
export async function writeColumns(path: string, linesPath: string): Promise<void> {
  const write = path.toLowerCase().endsWith('.arrow') ? writeArrowGroups : writeParquetGroups
  const columns = { ...COLUMNS, ...(await detailColumnsOf(linesPath)) }
  await write(path, struct(columns), groupsOf(linesPath))
}

/** Looks for their names in the text, which costs far less than to read it twice. */
async function detailColumnsOf(linesPath: string): Promise<Record<string, Shape>> {
  const missing = new Map(Object.entries(DETAIL_COLUMNS))
  const found = new Set<string>()
  for await (const line of wholeLines(linesPath)) {
    for (const name of missing.keys()) {
      if (!line.includes(`"${name}":`)) continue
      found.add(name)
      missing.delete(name)
    }
  }
  return Object.fromEntries(Object.entries(DETAIL_COLUMNS).filter(([name]) => found.has(name)))
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
