/** Parts that the schemas of trainers' and operators' routes have in common. */
import Type, { type TSchema } from 'typebox'
import { nullable } from '../../../protocol/schema/field.ts'

/** The options of a request schema that rejects fields which it does not define. */
export const STRICT = { additionalProperties: false }

/** The schema of a body or a query without fields. */
export const Nothing = Type.Object({}, STRICT)

export const ErrorReply = Type.Object({
  detail: Type.String(),
  code: Type.String(),
  param: nullable(Type.String()),
})

/** The description of a route. Its response schema only documents: the types of handlers are not derived from it. */
interface RouteDescription {
  tags: string[]
  summary: string
  response: unknown
}

/** Returns the description of a response in a media type other than JSON. */
export function describeMedia(media: string, schema: TSchema) {
  return { description: 'The response', content: { [media]: { schema } } }
}

/**
 * Returns the options of a route: its schema, with error responses, and a query without parameters unless `parts` has
 * one.
 */
export function describe<P extends object>(
  tag: string,
  summary: string,
  success: TSchema | ReturnType<typeof describeMedia>,
  parts: P,
): { schema: RouteDescription & P } {
  const response = { 200: success, '4xx': ErrorReply, '5xx': ErrorReply }
  return { schema: { tags: [tag], summary, querystring: Nothing, ...parts, response } }
}
