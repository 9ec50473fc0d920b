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
  sampling_mask: perToken(ids(), 'Per response token: the ids that the sampler left to choose from'),
  sampling_mask_logprobs: perToken(nullable(logprobs()), 'Of each id in `sampling_mask`'),
  sampling_logprobs: perToken(Type.Number(), 'Per response token: normalised over `sampling_mask`'),
  top_logprob_ids: perToken(ids(), 'Per response token: the likeliest ids'),
  top_logprobs: perToken(logprobs(), 'Of each id in `top_logprob_ids`'),
  prompt_logprob_ids: perToken(ids(), 'Per token of prompt and response: its own id, then the likeliest'),
  prompt_logprobs: perToken(logprobs(), 'Of each id in `prompt_logprob_ids`'),
  routed_experts: Type.Optional(
    nullable(
      Type.Object({
        dtype: Type.String({ description: 'Of NumPy, little-endian' }),
        shape: Type.Array(Type.Integer(), { description: 'Tokens of prompt and response first' }),
        known: Type.Array(Type.Array(Type.Integer()), {
          description: 'From which token up to which; zeros elsewhere',
        }),
        data: Type.String({ description: 'base64' }),
      }),
    ),
  ),
  weight_versions: Type.Optional(
    nullable(
      Type.Array(Type.Object({ version: Type.String(), start: Type.Integer(), end: Type.Integer() }), {
        description: 'In response tokens',
      }),
    ),
  ),
  teacher: Type.Optional(nullable(Type.String({ description: 'Whose `teacher_logprobs` they are' }))),
  teacher_logprobs: perToken(Type.Number(), 'Per response token: by the teacher, before temperature'),
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
        Type.Array(nullable(Type.Number()), { description: 'Per sampled token; fewer are the first ones' }),
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
    teacher: Type.Optional(Type.String({ minLength: 1, description: 'Whose `teacher_logprobs` they are' })),
  },
  STRICT,
)

export const AddedDetails = Type.Object({
  session_id: Type.String(),
  turns: Type.Integer({ description: 'That have them now' }),
})

export const ScoreBody = Type.Object(
  {
    model: Type.Optional(
      Type.String({ minLength: 1, description: 'Only an engine that lists it reads; default: any' }),
    ),
    teacher: Type.Optional(
      Type.String({ minLength: 1, description: "The name to keep them under; default: the model's" }),
    ),
  },
  STRICT,
)

export const ScoredSession = Type.Object({
  session_id: Type.String(),
  teacher: nullable(Type.String({ description: 'null: there was nothing to read' })),
  rows: Type.Integer({ description: 'That were read' }),
  turns: Type.Integer(),
  tokens: Type.Integer({ description: 'Sampled ones' }),
  left_out: Type.Object(
    { inexact: Type.Integer(), images: Type.Integer() },
    { description: 'Rows that were not read: without exact ids, with images' },
  ),
})

export const Sampling = Type.Object({
  logprobs_mode: nullable(Type.String({ description: 'What logprobs are of; null: unknown' })),
  values: Type.Record(Type.String(), nullable(Type.Number()), {
    description: 'null: a default that the engine does not tell',
  }),
  from: Type.Record(Type.String(), Type.Enum(['session', 'agent', 'engine'])),
})

export function detailsParameter() {
  return Type.Optional(
    Type.String({
      description:
        'What to show beyond ids and logprobs, with commas: `sampling_mask`, `sampling_logprobs`, `top_logprobs`, ' +
        '`prompt_logprobs`, `routed_experts`, `weight_versions`, `teacher_logprobs`, `advantages`, `ratios`, ' +
        '`entropies`, `loss_weights`, `sampling`; or `all`; see docs/details.md',
    }),
  )
}
