/**
 * The storage of the recorded fields of a turn (`protocol/schema/turn.ts`) in `turns`: the columns, their types, and
 * the checksum that covers them. A field without an entry here has one column, named like its property, with the type
 * of its value; no checksum covers it, because nodes of the previous release verify the checksums of new rows.
 */
import { RECORD_FIELDS, type RecordField, toCamelCase } from '../../../protocol/schema/turn.ts'
import { packOptionalText, packText, type TextColumn, unpackOptionalText } from './packing.ts'

/** SQLite's `INTEGER`, `REAL`, `TEXT`, `BLOB`; PostgreSQL's `bigint`, `double precision`, `text`, `bytea`. */
export type ColumnType = 'integer' | 'real' | 'text' | 'bytes'

interface TurnColumn {
  /** Absent: the type of the field's value. */
  readonly type?: ColumnType
  /**
   * The checksum that covers the column: `ids_sum` or `turn_sum`. Both read columns in the order of their definition.
   */
  readonly sum?: 'ids' | 'turn'
  /** The property of the field. Default: the column's name in camel case. */
  readonly property?: string
  /** The conversion of the value. Default: the one for its type. */
  readonly codec?: Codec
}

/** The conversion of a field's value to the value of its column, and back. */
interface Codec {
  pack(value: unknown): unknown
  unpack(column: unknown): unknown
}

const UNCHANGED: Codec = { pack: (value) => value, unpack: (column) => column }

const OPTIONAL: Codec = { pack: (value) => value ?? null, unpack: (column) => column }

const BOOLEAN: Codec = { pack: (value) => (value ? 1 : 0), unpack: (column) => column === 1 }

const OPTIONAL_BOOLEAN: Codec = {
  pack: (value) => (value === null || value === undefined ? null : Number(value)),
  unpack: (column) => (column === null ? null : column === 1),
}

const TEXT: Codec = {
  pack: (value) => packOptionalText((value ?? null) as string | null),
  unpack: (column) => unpackOptionalText(column as TextColumn | null),
}

/** The JSON text of a list; NULL in an open turn. */
const LIST: Codec = {
  pack: (value) => packText(value as string),
  unpack: (column) => unpackOptionalText(column as TextColumn | null) ?? '[]',
}

const ANNOTATIONS: Codec = {
  pack: (value) => packAnnotations(value as string),
  unpack: (column) => unpackOptionalText(column as TextColumn | null) ?? '{}',
}

export function packAnnotations(json: string): TextColumn | null {
  return json === '{}' ? null : packText(json)
}

type Values = Readonly<Record<string, unknown>>

type TurnColumns = Readonly<Record<string, TurnColumn>>

const SUMMED: TurnColumn = { sum: 'turn' }
const NAME: TurnColumn = { codec: UNCHANGED, sum: 'turn' }
/** A reference to a row of `nodes` or `texts`. */
const REFERENCE: TurnColumn = { type: 'integer', sum: 'turn' }

/** The columns that are written when a turn opens. */
const requestColumns: TurnColumns = {
  tree: { type: 'integer' },
  call_index: { property: 'index', sum: 'turn' },
  turn_id: NAME,
  dialect: NAME,
  started_at_ms: SUMMED,
  retry_count: SUMMED,
  node: REFERENCE,
  tools: REFERENCE,
  params: REFERENCE,
  prompt_node: REFERENCE,
}

/** The columns that are written when a turn ends; all but `status` are NULL before. */
const outcomeColumns: TurnColumns = {
  status: { codec: UNCHANGED },
  ended_at_ms: SUMMED,
  first_token_at_ms: SUMMED,
  model: SUMMED,
  engine: SUMMED,
  finish_reason: SUMMED,
  stop_reason: SUMMED,
  exact: SUMMED,
  inexact_reason: SUMMED,
  weight_version_start: SUMMED,
  weight_version_end: SUMMED,
  usage: SUMMED,
  annotations: { codec: ANNOTATIONS },
  error_code: { type: 'text' },
  error_message: { type: 'text' },
  completion_text: SUMMED,
  reasoning: SUMMED,
  tool_calls: { codec: LIST, sum: 'turn' },
  prompt_base: { type: 'integer', sum: 'ids' },
  prompt_shared: { type: 'integer', sum: 'ids' },
  prompt_rest: { type: 'bytes', sum: 'ids' },
  completion_ids: { type: 'bytes', sum: 'ids' },
  completion_logprobs: { type: 'bytes', sum: 'turn' },
  ids_sum: { type: 'integer' },
  turn_sum: { type: 'integer' },
}

/**
 * The recorded fields that `turns.ts` and `turn-rows.ts` convert: those that are stored as references, in several
 * columns, or packed.
 */
const CONVERTED = new Set([
  ...['tools', 'params', 'error'],
  ...['promptTokenIds', 'completionTokenIds', 'completionLogprobs'],
])

/** A column of `turns`, with all defaults filled in. */
interface ColumnDefinition {
  readonly name: string
  readonly part: 'request' | 'outcome'
  readonly type: ColumnType
  readonly sum: 'ids' | 'turn' | undefined
  readonly isNullable: boolean
  /** The field whose value the column contains; undefined: none. */
  readonly value: { readonly property: string; readonly codec: Codec } | undefined
}

/** All columns but `id`. */
export const TURN_COLUMNS: readonly ColumnDefinition[] = [
  ...defineColumns('request', requestColumns),
  ...defineColumns('outcome', outcomeColumns),
]

function defineColumns(part: 'request' | 'outcome', columns: TurnColumns): ColumnDefinition[] {
  const fields = new Map(
    RECORD_FIELDS.filter((field) => field.part === part && !CONVERTED.has(field.property)).map((field) => [
      field.property,
      field,
    ]),
  )
  const known = Object.entries(columns).map(([name, column]) => {
    const property = column.property ?? toCamelCase(name)
    const field = fields.get(property)
    fields.delete(property)
    return defineColumn(name, part, column, field)
  })
  const others = [...fields.values()].map((field) =>
    defineColumn(toSnakeCase(field.property), part, {}, field),
  )
  return [...known, ...others]
}

function defineColumn(
  name: string,
  part: 'request' | 'outcome',
  { type, sum, codec }: TurnColumn,
  field: RecordField | undefined,
): ColumnDefinition {
  const [typeOfValue, codecOfType] = field === undefined ? [undefined, undefined] : getStorage(field)
  const value = field && { property: field.property, codec: codec ?? codecOfType! }
  const isNullable =
    name === 'tools' || field?.since !== undefined || (part === 'outcome' && name !== 'status')
  return { name, part, type: type ?? typeOfValue!, sum, isNullable, value }
}

/**
 * Returns the type of the column for a field's value, and the conversion.
 * @throws Error if there is none for the type, or if the field is not nullable although older turns lack it
 */
function getStorage({ name, type, form, since, whenNull }: RecordField): [ColumnType, Codec] {
  const kinds = getJsonTypes(type)
  if (since !== undefined && whenNull === undefined && !kinds.has('null'))
    throw new Error(`the field ${name} of a turn must be nullable: older turns do not have it`)
  if (form === 'time') return ['integer', OPTIONAL]
  if (form === 'json') return ['text', TEXT]
  if (kinds.has('boolean')) return ['integer', kinds.has('null') ? OPTIONAL_BOOLEAN : BOOLEAN]
  if (kinds.has('integer')) return ['integer', OPTIONAL]
  if (kinds.has('number')) return ['real', OPTIONAL]
  if (kinds.has('string')) return ['text', TEXT]
  throw new Error(`the field ${name} of a turn needs a column in turn-columns.ts, for its type`)
}

/** Returns the types of JSON that a schema permits. */
function getJsonTypes(schema: object): Set<unknown> {
  const {
    type,
    anyOf = [],
    enum: values = [],
  } = schema as {
    type?: string
    anyOf?: object[]
    enum?: unknown[]
  }
  return new Set([
    type,
    ...anyOf.flatMap((member) => [...getJsonTypes(member)]),
    ...values.map((value) => typeof value),
  ])
}

/** The names of the columns of a request, in the order in which their values are bound. */
export const REQUEST_COLUMNS = getNames(({ part }) => part === 'request')

/** The names of the columns of an outcome, in the order in which their values are bound. */
export const OUTCOME_COLUMNS = getNames(({ part }) => part === 'outcome')

/**
 * The columns of a turn's tokens, which `ids_sum` covers. Sequences are assembled and verified from these columns
 * alone.
 */
export const IDS_SUMMED = getNames(({ sum }) => sum === 'ids')

/** Other columns that do not change after the end of a turn, which `turn_sum` covers. */
export const TURN_SUMMED = getNames(({ sum }) => sum === 'turn')

/** The columns of a turn as SQL, with those of its token ids. */
export const STEP_COLUMNS = ['id', ...getNames(({ name }) => name !== 'tree')].join(', ')

/** The columns of a turn as SQL, without those of its token ids. */
export const OUTLINE_COLUMNS = [
  'id',
  ...getNames(({ name, sum }) => name !== 'tree' && sum !== 'ids' && name !== 'ids_sum'),
].join(', ')

function getNames(select: (column: ColumnDefinition) => boolean): readonly string[] {
  return TURN_COLUMNS.filter(select).map(({ name }) => name)
}

const types = new Map(TURN_COLUMNS.map(({ name, type }) => [name, type]))

/** Returns the type of a column of `turns`. */
export function getTurnColumnType(name: string): ColumnType {
  return types.get(name) ?? 'integer'
}

type ValueColumn = ColumnDefinition & { readonly value: NonNullable<ColumnDefinition['value']> }

const VALUE_COLUMNS = TURN_COLUMNS.filter((column): column is ValueColumn => column.value !== undefined)
const VALUE_COLUMNS_BY_PART = {
  request: VALUE_COLUMNS.filter(({ part }) => part === 'request'),
  outcome: VALUE_COLUMNS.filter(({ part }) => part === 'outcome'),
}

/** Returns the columns of those fields that are stored as one column each. */
export function packFields(part: 'request' | 'outcome', values: object): Record<string, unknown> {
  const row: Record<string, unknown> = {}
  for (const { name, value } of VALUE_COLUMNS_BY_PART[part])
    row[name] = value.codec.pack((values as Values)[value.property])
  return row
}

/** Returns the fields that are stored as one column each. */
export function unpackFields(row: object): Record<string, unknown> {
  const values: Record<string, unknown> = {}
  for (const { name, value } of VALUE_COLUMNS)
    values[value.property] = value.codec.unpack((row as Values)[name])
  return values
}

function toSnakeCase(property: string): string {
  return property.replace(/[A-Z]/g, (letter) => `_${letter.toLowerCase()}`)
}
