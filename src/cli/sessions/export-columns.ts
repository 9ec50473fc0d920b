/** Writes training rows of sessions as columns to a Parquet or Arrow file. */
import { ProxyError } from '../../base/errors.ts'
import type { SessionsExportConfig } from '../../proxy/config/options/sessions.ts'
import { splitLines } from '../../rollout/datasets/complete-lines.ts'
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
import type { TrajectoryJson } from './api.ts'

const SPAN: Record<keyof TrajectoryJson['turns'][number], Shape> = {
  turn_id: TEXT,
  index: INTEGER,
  line: TEXT,
  policy: TEXT,
  start: INTEGER,
  end: INTEGER,
  trained: BOOLEAN,
  reward: NUMBER,
  labels: listOf(TEXT),
  finish_reason: TEXT,
  weight_version_start: TEXT,
  weight_version_end: TEXT,
  sampling: TEXT,
}

const perToken = listOf(NUMBER)

/** Columns of trainer data: from a teacher, or from the trainer. */
const LATER_COLUMNS = {
  teacher: TEXT,
  teacher_logprobs: perToken,
  advantages: perToken,
  ratios: perToken,
  entropies: perToken,
  loss_weights: perToken,
} satisfies Partial<Record<keyof TrajectoryJson, Shape>>

const DETAILS = { ...DETAIL_COLUMNS, ...LATER_COLUMNS }

/** Images have no column, because a row group would contain those of all its rows. */
type PlainColumn = Exclude<keyof TrajectoryJson, keyof typeof DETAILS | 'images'>

const TRAJECTORY: Record<PlainColumn, Shape> = {
  line: TEXT,
  policy: TEXT,
  finished: BOOLEAN,
  ...TOKEN_COLUMNS,
  turns: listOf(struct(SPAN)),
  num_turns: INTEGER,
  finish_reason: TEXT,
  weight_version_min: TEXT,
  weight_version_max: TEXT,
  unversioned_turns: INTEGER,
  reward: NUMBER,
  // The reward function defines the names, so they differ between runs.
  reward_components: TEXT,
  labels: listOf(TEXT),
  exact: BOOLEAN,
  inexact_reason: TEXT,
  truncated: BOOLEAN,
  prompt_truncated: BOOLEAN,
}

const SFT: Record<string, Shape> = {
  line: TEXT,
  num_turns: INTEGER,
  reward: NUMBER,
  input_ids: listOf(INTEGER),
  labels: listOf(INTEGER),
}

/**
 * Writes the rows.
 * @param pieces chunks of lines, one row each
 * @throws ProxyError `config_invalid` for a format that has no rows, `start_failed` if the file cannot be written
 */
export async function writeExportColumns(
  path: string,
  { format, details }: Pick<SessionsExportConfig, 'format' | 'details'>,
  pieces: AsyncIterable<string>,
): Promise<void> {
  if (format !== 'trajectories' && format !== 'sft')
    throw new ProxyError(
      'config_invalid',
      `--format ${format} is no rows: name an --output that ends in .jsonl`,
    )
  const columns = format === 'sft' ? SFT : { ...TRAJECTORY, ...(details.length > 0 && DETAILS) }
  await writeRowColumns(path, { session_id: TEXT, ...columns }, splitLines(pieces))
}
