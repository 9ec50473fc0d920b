/** Adapts responses of earlier releases, which lack members that later releases added. */
import Type, { type TSchema } from 'typebox'
import { Value } from 'typebox/value'
import { isRecord } from '../base/json.ts'
import { SINCE } from '../protocol/schema/field.ts'

/**
 * Adds the members that an earlier release lacks: null where the schema permits it, an empty list for a list. Members
 * of other types stay missing; those that a later release added are optional in {@link toClientSchema}.
 */
export function addMissingMembers(schema: TSchema, value: unknown): void {
  if (Type.IsUnion(schema)) addUnionMembers(schema.anyOf, value)
  else if (Type.IsArray(schema) && Array.isArray(value))
    for (const item of value) addMissingMembers(schema.items, item)
  else if (Type.IsObject(schema) && isRecord(value))
    for (const [name, member] of Object.entries(schema.properties)) {
      if (!(name in value) && !Type.IsOptional(member)) addMember(value, name, member)
      else addMissingMembers(member, value[name])
    }
}

function addMember(value: Record<string, unknown>, name: string, schema: TSchema): void {
  if (Value.Check(schema, null)) value[name] = null
  else if (Type.IsArray(schema)) value[name] = []
}

/** Adds the members of the first type of a union that the value then matches. */
function addUnionMembers(types: readonly TSchema[], value: unknown): void {
  const type = types.find((candidate) => {
    const copy = structuredClone(value)
    addMissingMembers(candidate, copy)
    return Value.Check(candidate, copy)
  })
  if (type !== undefined) addMissingMembers(type, value)
}

/** The client schemas by response schema. Each is computed once. */
const clientSchemas = new Map<TSchema, TSchema>()

/**
 * Returns the schema of a response for a client: members with {@link SINCE} are optional. A later release may add only
 * such members, nullable ones and lists; test/slow/earlier-proxy.test.ts finds all others.
 */
export function toClientSchema<T extends TSchema>(schema: T): T {
  const known = clientSchemas.get(schema)
  if (known !== undefined) return known as T
  const created = toOptionalMembers(schema)
  clientSchemas.set(schema, created)
  return created as T
}

function toOptionalMembers(schema: TSchema): TSchema {
  if (Type.IsUnion(schema)) return Type.Union(schema.anyOf.map(toOptionalMembers))
  if (Type.IsArray(schema)) return Type.Array(toOptionalMembers(schema.items))
  if (!Type.IsObject(schema)) return schema
  const members = Object.entries(schema.properties).map(([name, member]) => {
    const read = toOptionalMembers(member)
    return [name, SINCE in member || Type.IsOptional(member) ? Type.Optional(read) : read]
  })
  return Type.Object(Object.fromEntries(members))
}
