/** The row: one training-ready sequence of a session, as the trajectories API returns it. */
import Type from 'typebox'
import {
  type Field,
  type FieldValues,
  ids,
  nullable,
  nullableText,
  numbersByName,
  text,
  toProperties,
} from './field.ts'
import { withFormerFields } from './former-names.ts'
import { rowDetailFields } from './row-details.ts'

/** A field of a row. */
interface RowField extends Field {
  /**
   * The place of the field in verl's `AgentLoopOutput`: in the row under its own name, or in `extra_fields`. Absent: in
   * neither.
   */
  readonly output?: 'row' | 'extra_fields'
}

const agentRole = () => text('`main`, `compaction`, `side` or `subagent:…`; see docs/lines.md')
const labels = () => Type.Array(Type.String(), { description: 'Labels by people' })

const samplingFields = {
  logprobs_mode: { type: nullableText('The distribution of the logprobs; null: unknown') },
  values: {
    type: Type.Record(Type.String(), nullable(Type.Number()), {
      description: 'null: a default that the engine does not report',
    }),
  },
  from: { type: Type.Record(Type.String(), Type.Enum(['session', 'agent', 'engine'])) },
} satisfies Record<string, Field>

/** An engine request of a response that continued after its engine request was cut. */
export const engineRequestFields = {
  start: {
    type: Type.Integer({
      description: 'Index of its first token, in the same sequence as the offsets of the turn',
    }),
  },
  end: {
    type: Type.Integer({ description: 'Index after its last token; equal to `start` if it has no tokens' }),
  },
  engine: { type: nullableText('The engine; null: none accepted it') },
  weight_version: { type: nullableText('The weights that sampled it; null: unknown, or several') },
  request_id: { type: Type.String() },
  end_reason: { type: text('The finish reason, `abort`, or the code of the error that cut it') },
} satisfies Record<string, Field>

/** The span of a turn in a row. */
export const rowTurnFields = withFormerFields({
  turn_id: { type: Type.String() },
  index: { type: Type.Integer({ description: 'The position of the turn in its session, from 0' }) },
  agent_role: { type: agentRole() },
  policy: { type: nullableText('The model that the policies of the session assign to it; null: none') },
  start: { type: Type.Integer({ description: 'Start of its completion: an index into `response_ids`' }) },
  end: {
    type: Type.Integer({
      description: 'End of its completion; equal to `start` if truncation removed the turn',
    }),
  },
  trained: {
    type: Type.Boolean({
      description: 'Whether the mask is 1 in the span; if not, another row trains the turn',
    }),
  },
  reward: { type: nullable(Type.Number({ description: "The turn's own reward; null: none" })) },
  labels: { type: labels() },
  finish_reason: { type: nullableText() },
  weight_version_start: { type: nullableText() },
  weight_version_end: { type: nullableText() },
  sampling: { type: Type.Optional(Type.Object(toProperties(samplingFields))), column: 'json' },
  engine_requests: {
    type: Type.Optional(
      Type.Array(Type.Object(toProperties(engineRequestFields)), {
        description: 'Its engine requests, if it continued after a cut; see docs/token-mode.md',
      }),
    ),
  },
} satisfies Record<string, Field>)

/** An image whose tokens are in a row. */
const rowImageFields = {
  sha256: { type: text("Digest of the image's bytes, in hexadecimal") },
  media_type: { type: Type.String() },
  width: { type: Type.Integer({ description: 'In pixels' }) },
  height: { type: Type.Integer({ description: 'In pixels' }) },
  at: { type: Type.Integer({ description: 'The index of its first token in prompt and response' }) },
  tokens: { type: Type.Integer({ description: 'The number of tokens that represent it' }) },
} satisfies Record<string, Field>

export const RowImage = Type.Object(toProperties(rowImageFields))

const versionRange = () =>
  nullableText(
    'The lowest, or highest, version of the turns whose tokens the row contains, compared as numbers if all are numbers, ' +
      'else the first, or last; null if one is unknown: the row may contain tokens of any age',
  )

/** The fields of every row. */
export const rowFields = withFormerFields({
  agent_role: { type: agentRole(), output: 'extra_fields' },
  policy: { type: nullableText('The policy of all its turns; null: none, or several; see docs/lines.md') },
  finished: {
    type: Type.Boolean({ description: 'Whether the session was completed; false: aborted, or still active' }),
    output: 'extra_fields',
  },
  prompt_ids: { type: ids('The prompt of its first turn'), output: 'row' },
  response_ids: { type: ids('Completions, and the tokens between them'), output: 'row' },
  response_mask: {
    type: Type.Array(Type.Integer({ minimum: 0, maximum: 1 }), {
      description: '1 on sampled tokens that this row trains, else 0; as long as `response_ids`',
    }),
    output: 'row',
  },
  response_logprobs: {
    type: Type.Array(Type.Number(), {
      description:
        'Natural logarithms, as the engine reported them; 0.0 where the mask is 0; as long as `response_ids`',
    }),
    output: 'row',
  },
  turns: {
    type: Type.Array(Type.Object(toProperties(rowTurnFields)), {
      description:
        'In order; `start` and `end`: the span of its completion in `response_ids`, `trained`: whether the mask is 1 there, ' +
        '`reward`: its own, if it has one; `engine_requests`: the spans of its engine requests, if it continued after a cut',
    }),
  },
  num_turns: { type: Type.Integer({ description: 'The number of its turns' }), output: 'row' },
  finish_reason: { type: nullableText('The finish reason of its last turn'), output: 'extra_fields' },
  weight_version_min: { type: versionRange(), output: 'extra_fields' },
  weight_version_max: { type: versionRange(), output: 'extra_fields' },
  unversioned_turns: {
    type: Type.Integer({
      description:
        'The number of turns with an unknown version at the start or the end, or in an engine request',
    }),
  },
  reward: { type: nullable(Type.Number({ description: 'The reward of its agent role, or of the session' })) },
  reward_components: { type: numbersByName() },
  labels: { type: labels() },
  exact: {
    type: Type.Boolean({ description: 'False: the row is one turn without exact ids, with empty lists' }),
  },
  inexact_reason: { type: nullableText('Why it is not exact') },
  truncated: {
    type: Type.Boolean({ description: 'Whether `response_length` or the engine truncated it' }),
    output: 'extra_fields',
  },
  prompt_truncated: {
    type: Type.Boolean({ description: 'Whether `prompt_length` truncated it' }),
    output: 'extra_fields',
  },
} satisfies Record<string, RowField>)

/** The fields of a row that are present if it has images, or if they were requested. */
export const optionalRowFields = {
  images: {
    type: Type.Optional(
      Type.Array(RowImage, {
        description:
          'Images of token mode in the row: `sha256`, `media_type`, `width`, `height`, `at` (first token), `tokens`',
      }),
    ),
    // Not stored in columns: a row group would contain the images of all its rows.
    column: 'none',
    output: 'row',
  },
  ...rowDetailFields,
} satisfies Record<string, RowField>

export type RowTurn = FieldValues<typeof rowTurnFields>
export type RowJson = FieldValues<typeof rowFields>
/** An engine request of a response. Offsets are in tokens of the completion, in a row those of `response_ids`. */
export type EngineRequest = Readonly<FieldValues<typeof engineRequestFields>>
export type RowImage = FieldValues<typeof rowImageFields>
