/** Rows of `turns` as read, and their conversions to parts of a turn record. */
import type { TurnStatus } from '../port/turn-store.ts'
import type { CompletionFieldNames } from './echo.ts'
import { countIds, type TextColumn, unpackIds, unpackLogprobs, unpackOptionalText } from './packing.ts'

/** The columns of a completion in `turns`. */
export interface CompletionRow {
  id: number
  completion_text: TextColumn | null
  reasoning: TextColumn | null
  tool_calls: TextColumn | null
}

export function toCompletion(row: CompletionRow): CompletionFieldNames {
  return {
    completionText: unpackOptionalText(row.completion_text),
    reasoning: unpackOptionalText(row.reasoning),
    toolCalls: unpackOptionalText(row.tool_calls),
  }
}

export interface TurnRow {
  id: number
  call_index: number
  turn_id: string
  status: TurnStatus
  dialect: string
  started_at_ms: number
  retry_count: number
  node: number
  tools: number | null
  params: number
  prompt_node: number
  ended_at_ms: number | null
  first_token_at_ms: number | null
  model: TextColumn | null
  engine: TextColumn | null
  finish_reason: TextColumn | null
  stop_reason: TextColumn | null
  exact: number | null
  inexact_reason: TextColumn | null
  weight_version_start: TextColumn | null
  weight_version_end: TextColumn | null
  usage: TextColumn | null
  annotations: TextColumn | null
  error_code: string | null
  error_message: TextColumn | null
  completion_text: TextColumn | null
  reasoning: TextColumn | null
  tool_calls: TextColumn | null
  completion_logprobs: Buffer | null
  turn_sum: number | null
}

export interface StepRow extends TurnRow {
  prompt_base: number | null
  prompt_shared: number | null
  prompt_rest: Buffer | null
  completion_ids: Buffer | null
  ids_sum: number | null
}

export const TURN_COLUMNS = `
  id, call_index, turn_id, status, dialect, started_at_ms, retry_count, node, tools, params, prompt_node,
  ended_at_ms, first_token_at_ms, model, engine, finish_reason, stop_reason, exact, inexact_reason,
  weight_version_start, weight_version_end, usage, annotations, error_code, error_message,
  completion_text, reasoning, tool_calls, completion_logprobs, turn_sum`

export const STEP_COLUMNS = `${TURN_COLUMNS}, prompt_base, prompt_shared, prompt_rest, completion_ids, ids_sum`

export function readIds(packed: Buffer | null): Int32Array {
  return packed === null ? new Int32Array(0) : unpackIds(packed)
}

export function readLogprobs({ completion_logprobs: packed }: TurnRow): Float64Array {
  return packed === null ? new Float64Array(0) : unpackLogprobs(packed)
}

export function outlinePart(row: StepRow) {
  const { prompt_shared: shared, prompt_rest: rest, completion_ids: sampled } = row
  return {
    promptTokens: rest === null ? 0 : (shared ?? 0) + countIds(rest),
    sampledTokens: sampled === null ? 0 : countIds(sampled),
  }
}

export function outcomePart(row: TurnRow) {
  return {
    endedAtMs: row.ended_at_ms,
    firstTokenAtMs: row.first_token_at_ms,
    model: unpackOptionalText(row.model),
    engine: unpackOptionalText(row.engine),
    ...toCompletion(row),
    toolCalls: unpackOptionalText(row.tool_calls) ?? '[]',
    finishReason: unpackOptionalText(row.finish_reason),
    stopReason: unpackOptionalText(row.stop_reason),
    exact: row.exact === 1,
    inexactReason: unpackOptionalText(row.inexact_reason),
    weightVersionStart: unpackOptionalText(row.weight_version_start),
    weightVersionEnd: unpackOptionalText(row.weight_version_end),
    usage: unpackOptionalText(row.usage),
    annotations: unpackOptionalText(row.annotations) ?? '{}',
    error:
      row.error_code === null
        ? null
        : { code: row.error_code, message: unpackOptionalText(row.error_message) ?? '' },
  }
}

export function requestPart(row: TurnRow, sessionId: string) {
  return {
    turnId: row.turn_id,
    sessionId,
    index: row.call_index,
    status: row.status,
    dialect: row.dialect,
    startedAtMs: row.started_at_ms,
    retryCount: row.retry_count,
    tools: row.tools,
    params: row.params,
  }
}
