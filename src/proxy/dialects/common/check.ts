import Type, { type Static, type TObject, type TSchema } from 'typebox'
import { compileLazily } from '../../../base/compile-lazily.ts'
import { ProxyError } from '../../../base/errors.ts'
import { type RawNumber, readInteger } from '../../../protocol/canonical/number-texts.ts'
import { NO_MEMO, type PartMemo } from '../../../protocol/canonical/request-reader.ts'
import { listSchemaErrors, type SchemaError } from '../../../protocol/schema/schema-errors.ts'

/** Returns the schema of a field that may be absent or null, which clients use interchangeably. */
export function toNullable<S extends TSchema>(schema: S) {
  return Type.Optional(Type.Union([schema, Type.Null()]))
}

/** An integer of up to 64 bits. It is represented by its JSON text if a JavaScript number would round it. */
export const LargeInteger = Type.Unsafe<number | RawNumber>(
  Type.Refine(
    Type.Unknown({ description: 'An integer of up to 64 bits' }),
    (value) => readInteger(value) !== undefined,
    () => 'must be integer',
  ),
)

/**
 * Compiles a schema into a check that returns its argument, typed and unchanged.
 * @returns the check; its second argument is the value's path in the body, such as `messages.0.content.1`
 * @throws (the check) ProxyError `invalid_request` whose `param` is the path of the invalid field, such as
 *   `messages.0.role`
 */
export function createChecker<S extends TSchema>(schema: S): (value: unknown, at?: string) => Static<S> {
  const compiled = compileLazily(schema)
  return (value, at) => {
    if (compiled().Check(value)) return value as Static<S>
    throw createValidationError(
      listSchemaErrors(schema, compiled(), value),
      at === undefined ? [] : at.split('.'),
    )
  }
}

/**
 * Works like {@link createChecker}, for an object with a list. Elements that were checked in earlier requests are not
 * checked again.
 * @param field the name of the list
 * @param element the schema of each element of the list
 */
export function createListChecker<S extends TObject>(
  schema: S,
  field: string,
  element: TSchema,
): (value: unknown, memo?: PartMemo) => Static<S> {
  const checkAll = createChecker(schema)
  const frame = compileLazily(Type.Object({ ...schema.properties, [field]: Type.Array(Type.Unknown()) }))
  const compiled = compileLazily(element)
  const passes = (part: object) => compiled().Check(part)
  return (value, memo = NO_MEMO) => {
    const list: unknown = frame().Check(value) ? (value as Record<string, unknown>)[field] : undefined
    const isKnown =
      Array.isArray(list) &&
      list.length > 0 &&
      list.every((part) => isObject(part) && memo.computeOnce(passes, part))
    return isKnown ? (value as Static<S>) : checkAll(value)
  }
}

export function isObject(value: unknown): value is object {
  return typeof value === 'object' && value !== null
}

/**
 * Creates an error from the most specific of several schema errors: a union fails with one for each of its members, and
 * the one with the longest path belongs to the member that the client meant.
 */
function createValidationError(errors: readonly SchemaError[], at: readonly string[]): ProxyError {
  const named = errors.map((error) => ({ error, path: [...at, ...getErrorPath(error)] }))
  named.sort((a, b) => b.path.length - a.path.length)
  const best = named[0]
  if (!best) return new ProxyError('invalid_request', 'The request body is not valid')
  const param = best.path.join('.')
  const siblings = named
    .filter((other) => other.path.join('.') === param)
    .map((other) => describeReason(other.error))
  const reasons = [...new Set(siblings)].filter((reason) => reason !== 'must match a schema in anyOf')
  const reason = reasons.join(' or ') || 'is not valid'
  if (param === '') return new ProxyError('invalid_request', `The request body ${reason}`)
  return new ProxyError('invalid_request', `'${param}' ${reason}`, { param })
}

function getErrorPath(error: SchemaError): string[] {
  const path = error.instancePath.split('/').slice(1)
  const missing = error.params.requiredProperties as string[] | undefined
  return error.keyword === 'required' && missing?.[0] !== undefined ? [...path, missing[0]] : path
}

function describeReason(error: SchemaError): string {
  if (error.keyword === 'required') return 'is required'
  if (error.keyword === 'const') return `must be ${JSON.stringify(error.params.allowedValue)}`
  return error.message
}
