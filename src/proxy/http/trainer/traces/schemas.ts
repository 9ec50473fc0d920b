/** Schemas of traces. Names and types are those of `TraceRecord` in rLLM's model gateway. */
import Type from 'typebox'
import { nullable, pickFields, toProperties } from '../../../../protocol/schema/field.ts'
import { rowTurnFields } from '../../../../protocol/schema/row.ts'
import { rowDetailFields } from '../../../../protocol/schema/row-details.ts'
import { STRICT } from '../../schemas/described.ts'
import { createDetailsParameter } from '../sessions/detail-schemas.ts'
import { turnMarkFields } from '../sessions/mark-schemas.ts'

const fields = () => Type.Record(Type.String(), Type.Unknown())

const since = Type.Optional(
  Type.Number({ description: 'Only turns that ended at this time or later; seconds since the epoch' }),
)
const limit = Type.Optional(Type.Integer({ minimum: 0, description: 'Only the first n turns of a session' }))

export const TracesQuery = Type.Object(
  {
    since,
    limit,
    details: createDetailsParameter(),
    format: Type.Optional(
      Type.String({
        description:
          '`compact`: as a graph, each turn with its additions to its parent. Other values are ignored',
      }),
    ),
  },
  STRICT,
)
export const TracesQueryBody = Type.Object(
  { session_ids: Type.Array(Type.String()), since, limit, details: createDetailsParameter() },
  STRICT,
)
export const TraceQuery = Type.Object({ details: createDetailsParameter() }, STRICT)
export const TraceParams = Type.Object({ traceId: Type.String() })

const facts = {
  trace_id: Type.String(),
  session_id: Type.String(),
  turn_id: Type.String({ description: 'The `turn_id` in `GET /sessions/{session_id}`' }),
  model: Type.String(),
  finish_reason: nullable(Type.String()),
  weight_version: nullable(
    Type.Integer({ description: 'The version at the start; null if it is not an integer: see `metadata`' }),
  ),
  latency_ms: Type.Number(),
  token_counts: Type.Record(Type.String(), Type.Integer(), { description: '`prompt`, `completion`' }),
  timestamp: Type.Number({ description: 'The end of the turn; seconds since the epoch' }),
  metadata: Type.Object({
    index: Type.Integer(),
    dialect: Type.String(),
    engine: nullable(Type.String()),
    exact: Type.Boolean(),
    inexact_reason: nullable(Type.String()),
    weight_version_start: nullable(Type.String()),
    weight_version_end: nullable(Type.String()),
    ...turnMarkFields,
  }),
}
const response = {
  response_message: fields(),
  completion_token_ids: Type.Array(Type.Integer(), { description: 'Empty unless all ids are exact' }),
  logprobs: Type.Array(Type.Number(), { description: 'One per id in `completion_token_ids`' }),
  ...toProperties({ ...rowDetailFields, ...pickFields(rowTurnFields, ['sampling']) }),
}

export const Trace = Type.Object({
  ...facts,
  messages: Type.Array(fields()),
  prompt_token_ids: Type.Array(Type.Integer(), { description: 'Empty unless all ids are exact' }),
  ...response,
})
export const Traces = Type.Array(Trace)
/** Traces as a graph. Names are those of `TraceGraph` and `TraceDelta` in rLLM's model gateway. */
export const TraceGraph = Type.Object({
  format: Type.Literal('compact'),
  version: Type.Literal(1),
  deltas: Type.Array(
    Type.Object({
      ...facts,
      parent_trace_id: nullable(
        Type.String({ description: 'The turn that this one continues; null: the lists are complete' }),
      ),
      lineage_id: Type.String({ description: 'The first turn of the conversation' }),
      messages_suffix: Type.Array(fields(), {
        description: "The messages after the parent's messages and its `response_message`",
      }),
      prompt_ids_suffix: Type.Array(Type.Integer(), {
        description: "The ids after the parent's prompt and completion",
      }),
      ...response,
    }),
  ),
})
export const TracesOrGraph = Type.Union([Traces, TraceGraph])
