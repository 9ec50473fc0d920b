/**
 * Public names that changed in 0.2.0, for clients of other releases: requests accept both names, and responses have
 * both until 0.3.0.
 */
import Type, { type TObject, type TOptional, type TProperties, type TSchema } from 'typebox'
import { isRecord } from '../../base/json.ts'
import type { Field, FieldTable } from './field.ts'

/** The former names, by present name. An entry applies to all responses and files that have the name. */
export const FORMER_NAMES = {
  agent_role: 'line',
  agent_role_rule: 'line_rule',
  /** In the body of a reward. */
  agent_roles: 'lines',
  padding: 'inert',
  recovered_at_index: 'resumed_at',
  reward_agent_roles: 'reward_lines',
  turn_labels: 'marked_turns',
} as const

type FormerNames = typeof FORMER_NAMES
type FormerName<Name> = Name extends keyof FormerNames ? FormerNames[Name] : never

/** An object, a table or properties with both the present and the former names. */
type WithBothNames<Present, Former> = { [Name in keyof (Present & Former)]: (Present & Former)[Name] }

export type WithFormerNames<T> = WithBothNames<T, { [Name in keyof T as FormerName<Name>]?: T[Name] }>
type WithFormerFields<F extends FieldTable> = WithBothNames<
  F,
  { [Name in keyof F as FormerName<Name>]: Omit<F[Name], 'type'> & { type: TOptional<F[Name]['type']> } }
>
type WithFormerProperties<P extends TProperties> = WithBothNames<
  P,
  { [Name in keyof P as FormerName<Name>]: TOptional<P[Name]> }
>

/** Returns the values of a response under both names. */
export function withFormerNames<T extends object>(values: T): WithFormerNames<T> {
  return addFormerNames(values, (value) => value) as WithFormerNames<T>
}

/** Returns the fields of a record under both names, the former ones as deprecated. */
export function withFormerFields<F extends FieldTable>(fields: F): WithFormerFields<F> {
  return addFormerNames(fields, ({ type, ...field }: Field, name) => ({
    ...field,
    type: toDeprecated(type, name),
  })) as WithFormerFields<F>
}

/** Returns the properties of a schema under both names, the former ones as deprecated. */
export function withFormerProperties<P extends TProperties>(properties: P): WithFormerProperties<P> {
  return addFormerNames(properties, toDeprecated) as WithFormerProperties<P>
}

function addFormerNames<Value>(
  values: Readonly<Record<string, Value>> | object,
  toFormer: (value: Value, name: string) => Value,
): Record<string, Value> {
  const entries = Object.entries(values as Record<string, Value>).flatMap(
    ([name, value]): [string, Value][] => {
      const former = findFormerName(name)
      return former === undefined
        ? [[name, value]]
        : [
            [name, value],
            [former, toFormer(value, name)],
          ]
    },
  )
  return Object.fromEntries(entries)
}

function findFormerName(name: string): string | undefined {
  return (FORMER_NAMES as Readonly<Record<string, string>>)[name]
}

function toDeprecated(schema: TSchema, name: string): TSchema {
  // A spread would lose the properties in which TypeBox stores the kind of a schema.
  const copy = Object.create(
    Object.getPrototypeOf(schema),
    Object.getOwnPropertyDescriptors(schema),
  ) as TSchema
  return Type.Optional(
    Object.assign(copy, { deprecated: true, description: `Deprecated: the former name of \`${name}\`` }),
  )
}

/** Returns whether a schema is that of a former name. */
export function isDeprecated(schema: TSchema): boolean {
  return (schema as { deprecated?: boolean }).deprecated === true
}

/**
 * Adds the present names to a response of an earlier release, which has only the former ones.
 * @param schema of the response; objects that it does not describe, such as metadata, are unchanged
 */
export function readFormerNames(schema: TSchema, value: unknown): void {
  if (Type.IsUnion(schema)) for (const member of schema.anyOf) readFormerNames(member, value)
  else if (Type.IsArray(schema) && Array.isArray(value))
    for (const item of value) readFormerNames(schema.items, item)
  else if (Type.IsObject(schema) && isRecord(value)) readMembers(schema, value)
}

function readMembers({ properties }: TObject, values: Record<string, unknown>): void {
  for (const [name, schema] of Object.entries(properties)) {
    const former = findFormerName(name)
    if (former !== undefined && former in values && !(name in values)) values[name] = values[former]
    if (name in values) readFormerNames(schema, values[name])
  }
}
