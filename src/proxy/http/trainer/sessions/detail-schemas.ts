/** Schemas of the routes that add trainer data, and of the parameter `details`. */
import Type, { type TArray, type TNull, type TNumber, type TOptional, type TUnion } from 'typebox'
import { nullable } from '../../../../protocol/schema/field.ts'
import { TRAINER_DATA_KINDS, type TrainerDataKind } from '../../../../protocol/token-data/kinds.ts'
import { STRICT } from '../../schemas/described.ts'

/** Lists of numbers for the sampled tokens of one turn, by kind. */
const TurnTrainerData = Type.Object(
  Object.fromEntries(
    TRAINER_DATA_KINDS.map((kind) => [
      kind,
      Type.Optional(
        Type.Array(nullable(Type.Number()), {
          description: 'One number per sampled token; a shorter list applies to the first tokens',
        }),
      ),
    ]),
  ) as Record<TrainerDataKind, TOptional<TArray<TUnion<[TNumber, TNull]>>>>,
  STRICT,
)

export const DetailsBody = Type.Object(
  {
    turns: Type.Record(Type.String(), TurnTrainerData, {
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

export function createDetailsParameter() {
  return Type.Optional(
    Type.String({
      description:
        'The data to return beyond ids and logprobs, comma-separated: `sampling_mask`, `sampling_logprobs`, `top_logprobs`, ' +
        '`prompt_logprobs`, `routed_experts`, `weight_versions`, `teacher_logprobs`, `advantages`, `ratios`, ' +
        '`entropies`, `loss_weights`, `sampling`; or `all`; see docs/details.md',
    }),
  )
}
