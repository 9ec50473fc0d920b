/**
 * What columns rows have: a shape for all values of a column, found by looking at them, the way pyarrow finds a
 * schema. Structs of different rows are merged field by field; what one row lacks is null there.
 */

export type Shape =
  | { kind: 'null' | 'boolean' | 'integer' | 'number' | 'text' }
  | { kind: 'list'; of: Shape }
  | { kind: 'struct'; fields: Fields }

/** What a file has of columns, or a struct of fields. */
export type Fields = ReadonlyMap<string, Shape>

/** JSON, and what TOML has beyond it. */
export type Value =
  | null
  | undefined
  | boolean
  | number
  | bigint
  | string
  | Date
  | readonly Value[]
  | { readonly [field: string]: Value }

const NULL: Shape = { kind: 'null' }
const TEXT: Shape = { kind: 'text' }

/** The shape that all of the values have. Values that have nothing in common share the shape of text. */
export function inferShape(values: Iterable<Value>): Shape {
  let shape = NULL
  for (const value of values) shape = merged(shape, inferValueShape(value))
  return shape
}

function inferValueShape(value: Value): Shape {
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

function merged(a: Shape, b: Shape): Shape {
  if (a.kind === 'null') return b
  if (b.kind === 'null') return a
  if (a.kind === 'list' && b.kind === 'list') return { kind: 'list', of: merged(a.of, b.of) }
  if (a.kind === 'struct' && b.kind === 'struct')
    return { kind: 'struct', fields: mergedFields(a.fields, b.fields) }
  if (a.kind === b.kind) return a
  return isNumeric(a) && isNumeric(b) ? { kind: 'number' } : TEXT
}

function mergedFields(a: Fields, b: Fields): Fields {
  const fields = new Map(a)
  for (const [name, shape] of b) fields.set(name, merged(fields.get(name) ?? NULL, shape))
  return fields
}

function isNumeric({ kind }: Shape): boolean {
  return kind === 'integer' || kind === 'number'
}

function isList(value: object): value is readonly Value[] {
  return Array.isArray(value)
}

/** What there is nothing of is text to a file: a column must have a type, and a struct must have a field. */
export function storable(shape: Shape): Shape {
  const isEmpty = shape.kind === 'null' || (shape.kind === 'struct' && shape.fields.size === 0)
  return isEmpty ? TEXT : shape
}

/** The value in a column of a shape that was found with it; as JSON text where the column had to become text. */
export function fit(value: Value, shape: Shape): unknown {
  if (value === null || value === undefined) return null
  const column = storable(shape)
  if (column.kind === 'integer' && (typeof value === 'number' || typeof value === 'bigint'))
    return BigInt(value)
  if (column.kind === 'number') return Number(value)
  if (column.kind === 'text') return typeof value === 'string' ? value : toText(value)
  if (typeof value !== 'object' || value instanceof Date) return value
  if (isList(value)) return column.kind === 'list' ? value.map((each) => fit(each, column.of)) : value
  return column.kind === 'struct' ? fitFields(value, column.fields) : value
}

function fitFields(value: { readonly [field: string]: Value }, fields: Fields): object {
  return Object.fromEntries([...fields].map(([name, shape]) => [name, fit(value[name], shape)]))
}

function toText(value: Value): string {
  if (value instanceof Date) return value.toISOString()
  return JSON.stringify(value, (_key, inner) => (typeof inner === 'bigint' ? Number(inner) : inner))
}
