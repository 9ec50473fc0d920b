/** Rows of `turns` as read, and their conversions to parts of a turn record. */
import type { RecordPart } from '../../../protocol/schema/turn.ts'
import type { CompletionParts } from './echo.ts'
import { countIds, type TextColumn, unpackIds, unpackLogprobs, unpackOptionalText } from './packing.ts'
import { unpackFields } from './turn-columns.ts'

/** The columns of a completion in `turns`. */
export interface CompletionRow {
  id: number
  completion_text: TextColumn | null
  reasoning: TextColumn | null
  tool_calls: TextColumn | null
}

export function toCompletion(row: CompletionRow): CompletionParts {
  return {
    completionText: unpackOptionalText(row.completion_text),
    reasoning: unpackOptionalText(row.reasoning),
    toolCalls: unpackOptionalText(row.tool_calls),
  }
}

/** The columns of a turn that are read by their names; the others are read by {@link unpackFields}. */
export interface TurnRow extends CompletionRow {
  call_index: number
  turn_id: string
  node: number
  tools: number | null
  params: number
  prompt_node: number
  error_code: string | null
  error_message: TextColumn | null
  completion_logprobs: Buffer | null
  turn_sum: number | null
}

/** The columns of a turn with its token ids. */
export interface StepRow extends TurnRow {
  prompt_base: number | null
  prompt_shared: number | null
  prompt_rest: Buffer | null
  completion_ids: Buffer | null
  ids_sum: number | null
}

export function readIds(packed: Buffer | null): Int32Array {
  return packed === null ? new Int32Array(0) : unpackIds(packed)
}

export function readLogprobs({ completion_logprobs: packed }: TurnRow): Float64Array {
  return packed === null ? new Float64Array(0) : unpackLogprobs(packed)
}

export function getOutlinePart(row: StepRow) {
  const { prompt_shared: shared, prompt_rest: rest, completion_ids: sampled } = row
  return {
    promptTokens: rest === null ? 0 : (shared ?? 0) + countIds(rest),
    sampledTokens: sampled === null ? 0 : countIds(sampled),
  }
}

/** The fields of a turn without its tokens; tools and params are row ids. */
type FieldValues = Omit<
  RecordPart<'request'> & RecordPart<'outcome'>,
  'tools' | 'params' | 'promptTokenIds' | 'completionTokenIds' | 'completionLogprobs'
> &
  Pick<TurnRow, 'tools' | 'params'>

/** Returns the fields of a turn without its tokens; tools and params are row ids. */
export function toFieldValues(row: TurnRow): FieldValues {
  const { error_code: code, error_message: message, tools, params } = row
  const error = code === null ? null : { code, message: unpackOptionalText(message) ?? '' }
  return { ...(unpackFields(row) as Omit<FieldValues, 'error' | 'tools' | 'params'>), error, tools, params }
}
