/** Parts that the schemas of trainers' and operators' routes share. */
import Type, { type TSchema } from 'typebox'
import { nullable } from '../../../protocol/schema/field.ts'

/** The options of a request's schema, which rejects fields that it does not define. */
export const STRICT = { additionalProperties: false }

/** A body, or a query, without fields. */
export const Nothing = Type.Object({}, STRICT)

export const ErrorReply = Type.Object({
  detail: Type.String(),
  code: Type.String(),
  param: nullable(Type.String()),
})

/** The response's type is not derived: handlers return JSON that the response schema only describes. */
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
 * Returns a route's options: its schema with the parts that all routes share. Undefined query parameters are rejected.
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
