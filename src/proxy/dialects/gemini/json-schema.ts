/**
 * Conversion of Google's `Schema` (https://ai.google.dev/api/caching#Schema) to JSON Schema, which engines' grammars
 * read.
 */
import { ProxyError } from '../../../base/errors.ts'
import { isRecord } from '../../../base/json.ts'
import { isNestedTooDeeply } from '../../../protocol/json/json-weight.ts'
import { toCamelNames } from './names.ts'

/** The keywords whose value is a count. Google's APIs write counts as text, because they have 64 bits. */
const COUNTS = new Set(['minItems', 'maxItems', 'minLength', 'maxLength', 'minProperties', 'maxProperties'])

/** The keywords of JSON Schema 2020-12 and draft 7 whose value is a schema. */
const SCHEMA = new Set(
  'items additionalItems unevaluatedItems contains additionalProperties unevaluatedProperties propertyNames not if then else'.split(
    ' ',
  ),
)
/** The keywords whose value is a list of schemas. */
const SCHEMA_LISTS = new Set(['anyOf', 'oneOf', 'allOf', 'prefixItems', 'items'])
/** The keywords whose value is an object of schemas by name. */
const SCHEMA_MAPS = new Set(['properties', 'patternProperties', 'dependentSchemas', '$defs', 'definitions'])

/**
 * The string formats that grammars enforce. Google's other formats (`enum`, `int32`) are only informative, and
 * llguidance rejects them.
 */
const FORMATS = new Set('date-time time date duration email hostname ipv4 ipv6 uri uuid'.split(' '))

/** Google's type name for a schema without a type. */
const UNSPECIFIED = 'type_unspecified'

/**
 * Returns the JSON schema of a `Schema`, or of a JSON schema that uses Google's names of types, as Gemini CLI sends in
 * `parametersJsonSchema` and `responseJsonSchema`. Values (`enum`, `default`, …) are unchanged.
 * @throws ProxyError `invalid_request` for a schema that is nested too deeply
 */
export function toJsonSchema(schema: unknown): unknown {
  if (isNestedTooDeeply(schema, 200)) throw new ProxyError('invalid_request', 'A schema is nested too deeply')
  return convertSchema(schema)
}

function convertSchema(schema: unknown): unknown {
  if (!isRecord(schema)) return schema
  const { nullable, propertyOrdering: _, defs, ref, ...members } = toCamelNames(schema)
  if (defs !== undefined) members.$defs ??= defs
  if (typeof ref === 'string') members.$ref ??= ref.replace(/^#\/defs\//, '#/$defs/')
  const entries = Object.entries(members).map(([name, value]) => [name, convertMember(name, value)] as const)
  const converted = Object.fromEntries(entries.filter(([, value]) => value !== undefined))
  if (nullable === true && typeof converted.type === 'string') converted.type = [converted.type, 'null']
  return converted
}

function convertMember(name: string, value: unknown): unknown {
  if (name === 'type') return convertType(value)
  if (name === 'format') return FORMATS.has(String(value)) ? value : undefined
  if (name === 'propertyNames' && isAnyName(value)) return undefined
  if (COUNTS.has(name) && typeof value === 'string') return Number(value)
  if (SCHEMA_LISTS.has(name) && Array.isArray(value)) return value.map(convertSchema)
  if (SCHEMA.has(name)) return convertSchema(value)
  if (!SCHEMA_MAPS.has(name) || !isRecord(value)) return value
  return Object.fromEntries(Object.entries(value).map(([key, schema]) => [key, convertSchema(schema)]))
}

/**
 * Returns whether a `propertyNames` schema allows all names. Such a schema is removed, because zod writes it for each
 * record, and llguidance does not support the keyword.
 */
function isAnyName(schema: unknown): boolean {
  return isRecord(schema) && Object.keys(schema).length === 1 && convertType(schema.type) === 'string'
}

/** Converts a type, or a list of types, to JSON Schema; undefined if none is specified. */
function convertType(type: unknown): unknown {
  if (typeof type === 'string') return type.toLowerCase() === UNSPECIFIED ? undefined : type.toLowerCase()
  if (!Array.isArray(type)) return type
  const types = type.map(convertType).filter((name) => name !== undefined)
  return types.length === 0 ? undefined : types
}
