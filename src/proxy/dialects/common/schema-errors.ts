/**
 * Lists the errors of a value that does not conform to its schema. Unlike the compiled check, the library's enumeration
 * interprets the schema, and continues through every list after the first error: a list of two million numbers takes
 * seconds. Therefore each long list is replaced by a few of its elements, of which one is the first invalid element.
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
  anyOf?: readonly TSchema[]
}

/**
 * Returns errors of a value, of which there may be more. A list with more than {@link MAX_LISTED} elements has errors of
 * its first invalid element only.
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
    const { items, properties } = chooseBranch(schema, value)
    if (Array.isArray(value)) return items === undefined ? value : this.#shortenList(items, value, path)
    const copy: Record<string, unknown> = { ...value }
    for (const [name, member] of Object.entries(properties ?? {}))
      if (Object.hasOwn(copy, name)) copy[name] = this.shorten(member, copy[name], `${path}/${name}`)
    return copy
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
  return schema.anyOf === undefined ? [schema] : schema.anyOf.flatMap(listBranches)
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
