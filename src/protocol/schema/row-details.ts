/** The token data of a row, present if requested: docs/details.md. */
import Type, { type TSchema } from 'typebox'
import { type Field, type FieldValues, ids, nullable, nullableText } from './field.ts'

const perToken = <T extends TSchema>(schema: T, description: string) =>
  Type.Optional(Type.Union([Type.Array(nullable(schema)), Type.Null()], { description }))
const logprobs = () => Type.Array(nullable(Type.Number()))

/** The token data that an engine reports and a session captures. */
export const capturedFields = {
  sampling_mask: { type: perToken(ids(), 'Per response token: the ids that the sampler could choose from') },
  sampling_mask_logprobs: {
    type: perToken(nullable(logprobs()), 'The logprob of each id in `sampling_mask`'),
  },
  sampling_logprobs: {
    type: perToken(Type.Number(), 'Per response token: normalised over `sampling_mask`'),
  },
  top_logprob_ids: { type: perToken(ids(), 'Per response token: the most likely ids') },
  top_logprobs: { type: perToken(logprobs(), 'The logprob of each id in `top_logprob_ids`') },
  prompt_logprob_ids: {
    type: perToken(ids(), 'Per token of prompt and response: its own id, then the most likely ids'),
  },
  prompt_logprobs: { type: perToken(logprobs(), 'The logprob of each id in `prompt_logprob_ids`') },
  routed_experts: {
    type: Type.Optional(
      nullable(
        Type.Object({
          dtype: Type.String({ description: 'The NumPy type, little-endian' }),
          shape: ids('The tokens of prompt and response are the first dimension'),
          known: Type.Array(ids(), {
            description: 'The token spans that were reported, as `[start, end]`; zeros elsewhere',
          }),
          data: Type.String({ description: 'base64' }),
        }),
      ),
    ),
  },
  weight_versions: {
    type: Type.Optional(
      nullable(
        Type.Array(Type.Object({ version: Type.String(), start: Type.Integer(), end: Type.Integer() }), {
          description: '`start` and `end` in response tokens',
        }),
      ),
    ),
  },
} satisfies Record<string, Field>

/** The token data that a trainer adds to turns after they ended. */
const trainerDataFields = {
  teacher: { type: Type.Optional(nullableText('The teacher of `teacher_logprobs`')) },
  teacher_logprobs: {
    type: perToken(Type.Number(), "Per response token: the teacher's, before temperature"),
  },
  advantages: { type: perToken(Type.Number(), 'Per response token, by the trainer') },
  ratios: {
    type: perToken(Type.Number(), 'Per response token, by the trainer: trained over sampled probability'),
  },
  entropies: { type: perToken(Type.Number(), 'Per response token, by the trainer') },
  loss_weights: { type: perToken(Type.Number(), 'Per response token, by the trainer') },
} satisfies Record<string, Field>

/**
 * The fields that `details` can request. A field is null if no turn reported it; an entry of a list is null if it was
 * not reported for that token.
 */
export const rowDetailFields = { ...capturedFields, ...trainerDataFields }

export type TokenDataJson = FieldValues<typeof capturedFields>
