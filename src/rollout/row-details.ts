/** The token data of rows in the proxy's JSON: docs/details.md. */
import Type, { type Static, type TSchema } from 'typebox'

export const nullable = <T extends TSchema>(schema: T) => Type.Union([schema, Type.Null()])
const perToken = <T extends TSchema>(schema: T) => Type.Optional(nullable(Type.Array(nullable(schema))))
const ids = () => Type.Array(Type.Integer())
const logprobs = () => Type.Array(nullable(Type.Number()))

/** null: no turn of the row has any; within a list: this token has none. Absent: not requested. */
export const rowDetailFields = {
  sampling_mask: perToken(ids()),
  sampling_mask_logprobs: perToken(nullable(logprobs())),
  sampling_logprobs: perToken(Type.Number()),
  top_logprob_ids: perToken(ids()),
  top_logprobs: perToken(logprobs()),
  prompt_logprob_ids: perToken(ids()),
  prompt_logprobs: perToken(logprobs()),
  routed_experts: Type.Optional(
    nullable(
      Type.Object({
        dtype: Type.String(),
        shape: ids(),
        known: Type.Array(ids()),
        data: Type.String(),
      }),
    ),
  ),
  weight_versions: Type.Optional(
    nullable(Type.Array(Type.Object({ version: Type.String(), start: Type.Integer(), end: Type.Integer() }))),
  ),
}

const RowDetails = Type.Object(rowDetailFields)

export type RowDetailsJson = Static<typeof RowDetails>

const ROW_DETAILS = Object.keys(rowDetailFields) as (keyof RowDetailsJson)[]

/** Returns the token data of a row. */
export function selectRowDetails(row: RowDetailsJson): RowDetailsJson {
  return Object.fromEntries(ROW_DETAILS.flatMap((name) => (name in row ? [[name, row[name]]] : [])))
}

/** Returns the `details` to request for the rows of a session with these capture names. */
export function shownDetails(record: readonly string[]): string[] {
  const names = record.map((name) => name.replace(/:\d+$/, ''))
  return names.flatMap((name) => (name === 'sampling_mask' ? [name, 'sampling_logprobs'] : [name]))
}
