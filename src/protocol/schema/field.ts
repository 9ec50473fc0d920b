/**
 * Definitions of fields. A record (turn, session, row) is defined by one table of fields, from which its TypeScript
 * type, validator, OpenAPI schema, file columns and Python class are derived. See docs/architecture.md.
 */
import Type, { type Static, type TObject, type TSchema } from 'typebox'

/** The definition of one field; its name is the name on the wire. */
export interface Field<T extends TSchema = TSchema> {
  /** Type and description. */
  readonly type: T
  /** The release that added the field; clients must accept responses of earlier releases without it. Absent: 0.1.0. */
  readonly since?: string
  /** How Parquet and Arrow files store the field. Default: by its type. `json`: as JSON text; `none`: not at all. */
  readonly column?: 'json' | 'none'
}

export type FieldTable = Readonly<Record<string, Field>>

/** The TypeBox properties of a table. */
export type Properties<F extends FieldTable> = { -readonly [Name in keyof F]: F[Name]['type'] }

/** A value with the fields of a table. */
export type FieldValues<F extends FieldTable> = Static<TObject<Properties<F>>>

/** Returns the TypeBox properties of a table. */
export function toProperties<F extends FieldTable>(fields: F): Properties<F> {
  return mapFields(fields, ({ type }) => type) as Properties<F>
}

/** Returns the validator for a client, which must accept responses of earlier releases. */
export function toReader<F extends FieldTable>(fields: F): TObject<Properties<F>> {
  return Type.Object(
    mapFields(fields, ({ type, since }) => (since === undefined ? type : Type.Optional(type))),
  ) as unknown as TObject<Properties<F>>
}

/** Returns the fields of these names. */
export function pickFields<F extends FieldTable, Name extends keyof F>(
  fields: F,
  names: readonly Name[],
): Pick<F, NoInfer<Name>> {
  return Object.fromEntries(names.map((name) => [name, fields[name]])) as unknown as Pick<F, Name>
}

function mapFields<Mapped>(fields: FieldTable, map: (field: Field) => Mapped): Record<string, Mapped> {
  return Object.fromEntries(Object.entries(fields).map(([name, field]) => [name, map(field)]))
}

/** The schema property that names the release that added a member, for members that no table of fields defines. */
export const SINCE = 'x-since'

/** Returns the options of a type with a description, if there is one. */
const describe = (description?: string) => (description === undefined ? {} : { description })

export const nullable = <T extends TSchema>(schema: T) => Type.Union([schema, Type.Null()])
export const text = (description?: string) => Type.String(describe(description))
export const nullableText = (description?: string) => nullable(text(description))
export const ids = (description?: string) => Type.Array(Type.Integer(), describe(description))
export const numbersByName = (description?: string) =>
  Type.Record(Type.String(), Type.Number(), describe(description))
