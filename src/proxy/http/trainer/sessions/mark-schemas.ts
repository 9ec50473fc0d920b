/** Schemas of the labels and notes that people set; see `schemas.ts`. */
import Type from 'typebox'
import { nullable } from '../../../../protocol/schema/field.ts'
import { withFormerProperties } from '../../../../protocol/schema/former-names.ts'
import { STRICT } from '../../schemas/described.ts'

const labels = (description: string) => Type.Array(Type.String(), { description })
const note = () => nullable(Type.String({ description: 'A note by people; null: none' }))

/** The labels and the note of a turn. */
export const turnMarkFields = { labels: labels('Labels by people'), note: note() }

export const sessionMarkFields = withFormerProperties({
  labels: labels('Labels by people; empty until they are set'),
  note: note(),
  turn_labels: Type.Record(Type.String(), Type.Object(turnMarkFields), {
    description: 'The `labels` and `note` of turns that have any, by `index`',
  }),
})

const change = {
  labels: Type.Optional(
    Type.Array(Type.String({ minLength: 1, maxLength: 100, pattern: '^\\S(.*\\S)?$' }), {
      maxItems: 50,
      uniqueItems: true,
      description: 'The complete list, which replaces the previous one',
    }),
  ),
  note: Type.Optional(nullable(Type.String({ minLength: 1, maxLength: 10_000, description: 'null: none' }))),
}

export const MarksBody = Type.Object(
  {
    ...change,
    turns: Type.Optional(
      Type.Record(Type.String(), Type.Object(change, { ...STRICT, minProperties: 1 }), {
        description: '`labels` and `note` of single turns, by `index`, `turn_id` or the id of the response',
      }),
    ),
  },
  { ...STRICT, minProperties: 1 },
)
