/** Schemas of the data of rows and traces beyond ids and logprobs. */
import Type, {
  type TArray,
  type TNull,
  type TNumber,
  type TOptional,
  type TSchema,
  type TUnion,
} from 'typebox'
import { TRAINER_DATA_KINDS, type TrainerDataKind } from '../../../../protocol/token-data/kinds.ts'
import { nullable, STRICT } from '../../schemas/described.ts'

const ids = (description?: string) =>
  Type.Array(Type.Integer(), description === undefined ? {} : { description })
const perToken = <T extends TSchema>(schema: T, description: string) =>
  Type.Optional(Type.Union([Type.Array(nullable(schema)), Type.Null()], { description }))
const logprobs = () => Type.Array(nullable(Type.Number()))

/** The fields that `details` names; null: no turn reported it, and in a list: not reported for this token. */
export const detailFields = {
  sampling_mask: perToken(ids(), 'Per response token: the ids that the sampler could choose from'),
  sampling_mask_logprobs: perToken(nullable(logprobs()), 'The logprob of each id in `sampling_mask`'),
  sampling_logprobs: perToken(Type.Number(), 'Per response token: normalised over `sampling_mask`'),
  top_logprob_ids: perToken(ids(), 'Per response token: the most likely ids'),
  top_logprobs: perToken(logprobs(), 'The logprob of each id in `top_logprob_ids`'),
  prompt_logprob_ids: perToken(
    ids(),
    'Per token of prompt and response: its own id, then the most likely ids',
  ),
  prompt_logprobs: perToken(logprobs(), 'The logprob of each id in `prompt_logprob_ids`'),
  routed_experts: Type.Optional(
    nullable(
      Type.Object({
        dtype: Type.String({ description: 'The NumPy type, little-endian' }),
        shape: Type.Array(Type.Integer(), {
          description: 'The tokens of prompt and response are the first dimension',
        }),
        known: Type.Array(Type.Array(Type.Integer()), {
          description: 'The token spans that were reported, as `[start, end]`; zeros elsewhere',
        }),
        data: Type.String({ description: 'base64' }),
      }),
    ),
  ),
  weight_versions: Type.Optional(
    nullable(
      Type.Array(Type.Object({ version: Type.String(), start: Type.Integer(), end: Type.Integer() }), {
        description: '`start` and `end` in response tokens',
      }),
    ),
  ),
  teacher: Type.Optional(nullable(Type.String({ description: 'The teacher of `teacher_logprobs`' }))),
  teacher_logprobs: perToken(Type.Number(), "Per response token: the teacher's, before temperature"),
  advantages: perToken(Type.Number(), 'Per response token, by the trainer'),
  ratios: perToken(Type.Number(), 'Per response token, by the trainer: trained over sampled probability'),
  entropies: perToken(Type.Number(), 'Per response token, by the trainer'),
  loss_weights: perToken(Type.Number(), 'Per response token, by the trainer'),
}

/** Numbers of one turn's sampled tokens. */
const GivenNumbers = Type.Object(
  Object.fromEntries(
    TRAINER_DATA_KINDS.map((kind) => [
      kind,
      Type.Optional(
        Type.Array(nullable(Type.Number()), {
          description: 'One per sampled token; a shorter list is for the first tokens',
        }),
      ),
    ]),
  ) as Record<TrainerDataKind, TOptional<TArray<TUnion<[TNumber, TNull]>>>>,
  STRICT,
)

export const DetailsBody = Type.Object(
  {
    turns: Type.Record(Type.String(), GivenNumbers, {
      description: 'By `index`, `turn_id` or the id of the response',
    }),
    teacher: Type.Optional(Type.String({ minLength: 1, description: 'The teacher of `teacher_logprobs`' })),
  },
  STRICT,
)

export const AddedDetails = Type.Object({
  session_id: Type.String(),
  turns: Type.Integer({ description: 'The number of turns that were changed' }),
})

export const ScoreBody = Type.Object(
  {
    model: Type.Optional(
      Type.String({ minLength: 1, description: 'Only an engine that lists this model scores; default: any' }),
    ),
    teacher: Type.Optional(
      Type.String({ minLength: 1, description: "The name to store; default: the model's" }),
    ),
  },
  STRICT,
)

export const ScoredSession = Type.Object({
  session_id: Type.String(),
  teacher: nullable(Type.String({ description: 'null: there was no row to score' })),
  rows: Type.Integer({ description: 'The number of rows that were scored' }),
  turns: Type.Integer(),
  tokens: Type.Integer({ description: 'The number of sampled tokens' }),
  left_out: Type.Object(
    { inexact: Type.Integer(), images: Type.Integer() },
    { description: 'The rows that were not scored: without exact ids, with images' },
  ),
})

export const Sampling = Type.Object({
  logprobs_mode: nullable(Type.String({ description: 'The distribution of the logprobs; null: unknown' })),
  values: Type.Record(Type.String(), nullable(Type.Number()), {
    description: 'null: a default that the engine does not report',
  }),
  from: Type.Record(Type.String(), Type.Enum(['session', 'agent', 'engine'])),
})

export function detailsParameter() {
  return Type.Optional(
    Type.String({
      description:
        'The data to return beyond ids and logprobs, comma-separated: `sampling_mask`, `sampling_logprobs`, `top_logprobs`, ' +
        '`prompt_logprobs`, `routed_experts`, `weight_versions`, `teacher_logprobs`, `advantages`, `ratios`, ' +
        '`entropies`, `loss_weights`, `sampling`; or `all`; see docs/details.md',
    }),
  )
}
