import type { TSchema } from 'typebox'
import { Errors } from 'typebox/value'

/**
 * Returns the path of the first violation of a schema, such as `rules.2.when`, and the reason; undefined if there is
 * none.
 */
export function findSchemaError(
  schema: TSchema,
  value: unknown,
): { path: string; reason: string } | undefined {
  const [error] = Errors(schema, value)
  if (error === undefined) return undefined
  const path = error.instancePath.split('/').slice(1)
  // typebox checks an unknown property of a closed object against the schema `false`.
  if (error.keyword === 'boolean') return { path: path.join('.'), reason: 'is unknown' }
  if (error.keyword === 'required') {
    return { path: [...path, error.params.requiredProperties[0]].join('.'), reason: 'is missing' }
  }
  return { path: path.join('.'), reason: error.message }
}
