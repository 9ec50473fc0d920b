/**
 * Lists the errors of a value that does not conform to its schema. Unlike the compiled check, the library's enumeration
 * interprets the schema, and continues through every list and record after the first error: a list of two million
 * numbers takes seconds. Therefore each long list or record is replaced by a few of its elements, of which one is the
 * first invalid element.
 */
import type { TSchema } from 'typebox'
import { Compile, type Validator } from 'typebox/compile'

/** The fields of a schema error that are used. */
export interface SchemaError {
  keyword: string
  instancePath: string
  message: string
  params: Record<string, unknown>
}

/**
 * The length up to which a list is enumerated completely. Lists are nested in two levels (the parts of messages), so
 * that at most 10,000 elements are enumerated, which takes some milliseconds.
 */
const MAX_LISTED = 100

/** The fields of a JSON schema that contain other schemas. */
interface ParentSchema {
  type?: unknown
  items?: TSchema
  properties?: Readonly<Record<string, TSchema>>
  patternProperties?: Readonly<Record<string, TSchema>>
  anyOf?: readonly TSchema[]
  allOf?: readonly ParentSchema[]
}

/**
 * Returns errors of a value, of which there may be more. A list with more than {@link MAX_LISTED} elements has errors of
 * its first invalid element only, and a record with more members has those of the first ones and the first invalid one.
 * @param validator the validator of `schema`
 */
export function listSchemaErrors(schema: TSchema, validator: Validator, value: unknown): SchemaError[] {
  const shortener = new ListShortener()
  const errors = validator.Errors(shortener.shorten(schema, value)) as SchemaError[]
  // Only a rule for a list as a whole, such as a large `maxItems`, accepts a shortened list.
  if (errors.length === 0) return validator.Errors(value) as SchemaError[]
  return errors.map((error) => ({ ...error, instancePath: shortener.getOriginalPath(error.instancePath) }))
}

/** Replaces the long lists in a value, which is not modified. */
class ListShortener {
  /** The original index of the second element, by the path of the list in the shortened value. */
  readonly #moved = new Map<string, number>()

  /** @param path the JSON pointer of the value */
  shorten(schema: TSchema, value: unknown, path = ''): unknown {
    if (typeof value !== 'object' || value === null) return value
    const { items, properties, patternProperties } = chooseBranch(schema, value)
    // The elements of a tuple have a list of schemas.
    if (Array.isArray(value))
      return items === undefined || Array.isArray(items) ? value : this.#shortenList(items, value, path)
    const [record] = Object.entries((properties === undefined && patternProperties) || {})
    if (record) return this.#shortenRecord(...record, value, path)
    const copy: Record<string, unknown> = { ...value }
    for (const [name, member] of Object.entries(properties ?? {}))
      if (Object.hasOwn(copy, name)) copy[name] = this.shorten(member, copy[name], `${path}/${name}`)
    return copy
  }

  /** @param pattern the pattern of the names to which `member` applies */
  #shortenRecord(pattern: string, member: TSchema, record: object, path: string): object {
    const members = Object.entries(record)
    const few = members.length > MAX_LISTED ? selectMembers(pattern, member, members) : members
    const shortened = few.map(([name, value]) => [
      name,
      this.shorten(member, value, `${path}/${escapeName(name)}`),
    ])
    return Object.fromEntries(shortened)
  }

  #shortenList(items: TSchema, list: readonly unknown[], path: string): unknown[] {
    const few = list.length > MAX_LISTED ? this.#selectElements(items, list, path) : list
    return few.map((element, index) => this.shorten(items, element, `${path}/${index}`))
  }

  /** The first element is kept, because it determines which type of a union the client meant. */
  #selectElements(items: TSchema, list: readonly unknown[], path: string): readonly unknown[] {
    const validator = getValidator(items)
    const invalid = list.findIndex((element) => !validator.Check(element))
    // All elements are valid: the error is elsewhere, or concerns the length.
    if (invalid === -1) return list.slice(0, MAX_LISTED)
    if (invalid === 0) return list.slice(0, 1)
    this.#moved.set(path, invalid)
    return [list[0], list[invalid]]
  }

  /** Returns the path in the original value. */
  getOriginalPath(path: string): string {
    const segments = path.split('/')
    return segments
      .map((segment, index) => {
        const moved = segment === '1' ? this.#moved.get(segments.slice(0, index).join('/')) : undefined
        return moved ?? segment
      })
      .join('/')
  }
}

/** Returns the first members of a record, its first invalid one, and the first one whose name the pattern rejects. */
function selectMembers(
  pattern: string,
  schema: TSchema,
  members: readonly [string, unknown][],
): readonly (readonly [string, unknown])[] {
  const [validator, names] = [getValidator(schema), new RegExp(pattern, 'u')]
  const invalid = members.find(([name, value]) => names.test(name) && !validator.Check(value))
  const misnamed = members.find(([name]) => !names.test(name))
  return [...members.slice(0, MAX_LISTED), ...[invalid, misnamed].filter((member) => member !== undefined)]
}

/** Returns a name as a segment of a JSON pointer. */
function escapeName(name: string): string {
  return name.replaceAll('~', '~0').replaceAll('/', '~1')
}

/** Returns the schema itself or, of a union, the member that a list or an object is most likely meant to be. */
function chooseBranch(schema: TSchema, value: object): ParentSchema {
  const branches = listBranches(schema)
  if (!Array.isArray(value)) return branches.find(({ type }) => type === 'object') ?? {}
  const lists = branches.filter(({ type }) => type === 'array')
  const types = getTypes(value[0])
  const hasTypeOfFirst = ({ items }: ParentSchema) =>
    items !== undefined && listBranches(items).some(({ type }) => types.includes(type))
  return lists.find(hasTypeOfFirst) ?? lists[0] ?? {}
}

function listBranches(schema: ParentSchema): ParentSchema[] {
  if (schema.allOf !== undefined) return [mergeObjects(schema.allOf)]
  return schema.anyOf === undefined ? [schema] : schema.anyOf.flatMap(listBranches)
}

/** Returns the schema of an object that has the properties of all of the schemas. */
function mergeObjects(schemas: readonly ParentSchema[]): ParentSchema {
  const properties = Object.fromEntries(schemas.flatMap((schema) => Object.entries(schema.properties ?? {})))
  return { type: 'object', properties }
}

/** Returns the types in JSON schemas that a value may have. */
function getTypes(value: unknown): unknown[] {
  if (Array.isArray(value)) return ['array']
  return typeof value === 'number' ? ['integer', 'number'] : [typeof value]
}

const validators = new Map<TSchema, Validator>()

/** Returns the validator of an element's schema, which is compiled when a long list is first rejected. */
function getValidator(schema: TSchema): Validator {
  const existing = validators.get(schema)
  if (existing !== undefined) return existing
  const validator = Compile(schema)
  validators.set(schema, validator)
  return validator
}
