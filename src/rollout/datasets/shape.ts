/**
 * The shapes of columns, inferred from their values as pyarrow infers a schema. Structs of different rows are merged
 * field by field; a field that a row lacks is null there.
 */

export type ColumnShape =
  | { kind: 'null' | 'boolean' | 'integer' | 'number' | 'text' }
  | { kind: 'list'; of: ColumnShape }
  | { kind: 'struct'; fields: ColumnShapes }

/** The columns of a file, or the fields of a struct. */
export type ColumnShapes = ReadonlyMap<string, ColumnShape>

/** A JSON value, or one of TOML's other types. */
export type ColumnValue =
  | null
  | undefined
  | boolean
  | number
  | bigint
  | string
  | Date
  | readonly ColumnValue[]
  | { readonly [field: string]: ColumnValue }

const NULL: ColumnShape = { kind: 'null' }
const TEXT: ColumnShape = { kind: 'text' }

/** Returns the shape that all values have. Values of incompatible shapes become text. */
export function inferShape(values: Iterable<ColumnValue>): ColumnShape {
  let shape = NULL
  for (const value of values) shape = merge(shape, inferValueShape(value))
  return shape
}

function inferValueShape(value: ColumnValue): ColumnShape {
  if (value === null || value === undefined) return NULL
  if (typeof value === 'boolean') return { kind: 'boolean' }
  if (typeof value === 'bigint' || Number.isSafeInteger(value)) return { kind: 'integer' }
  if (typeof value === 'number') return { kind: 'number' }
  if (typeof value === 'string' || value instanceof Date) return TEXT
  if (isList(value)) return { kind: 'list', of: inferShape(value) }
  return {
    kind: 'struct',
    fields: new Map(Object.entries(value).map(([name, of]) => [name, inferValueShape(of)])),
  }
}

function merge(a: ColumnShape, b: ColumnShape): ColumnShape {
  if (a.kind === 'null') return b
  if (b.kind === 'null') return a
  if (a.kind === 'list' && b.kind === 'list') return { kind: 'list', of: merge(a.of, b.of) }
  if (a.kind === 'struct' && b.kind === 'struct')
    return { kind: 'struct', fields: mergeFields(a.fields, b.fields) }
  if (a.kind === b.kind) return a
  return isNumeric(a) && isNumeric(b) ? { kind: 'number' } : TEXT
}

function mergeFields(a: ColumnShapes, b: ColumnShapes): ColumnShapes {
  const fields = new Map(a)
  for (const [name, shape] of b) fields.set(name, merge(fields.get(name) ?? NULL, shape))
  return fields
}

function isNumeric({ kind }: ColumnShape): boolean {
  return kind === 'integer' || kind === 'number'
}

function isList(value: object): value is readonly ColumnValue[] {
  return Array.isArray(value)
}

/**
 * Returns a shape that files support. A shape without values or fields becomes text: a column needs a type, and a
 * struct needs a field.
 */
export function toStorable(shape: ColumnShape): ColumnShape {
  const isEmpty = shape.kind === 'null' || (shape.kind === 'struct' && shape.fields.size === 0)
  return isEmpty ? TEXT : shape
}

/**
 * Converts a value for a column whose shape was inferred from it and other values. A text column stores other values as
 * JSON.
 */
export function fit(value: ColumnValue, shape: ColumnShape): unknown {
  if (value === null || value === undefined) return null
  const column = toStorable(shape)
  if (column.kind === 'integer' && (typeof value === 'number' || typeof value === 'bigint'))
    return BigInt(value)
  if (column.kind === 'number') return Number(value)
  if (column.kind === 'text') return typeof value === 'string' ? value : toText(value)
  if (typeof value !== 'object' || value instanceof Date) return value
  if (isList(value)) return column.kind === 'list' ? value.map((each) => fit(each, column.of)) : value
  return column.kind === 'struct' ? fitFields(value, column.fields) : value
}

function fitFields(value: { readonly [field: string]: ColumnValue }, fields: ColumnShapes): object {
  return Object.fromEntries([...fields].map(([name, shape]) => [name, fit(value[name], shape)]))
}

function toText(value: ColumnValue): string {
  if (value instanceof Date) return value.toISOString()
  return JSON.stringify(value, (_key, inner) => (typeof inner === 'bigint' ? Number(inner) : inner))
}
