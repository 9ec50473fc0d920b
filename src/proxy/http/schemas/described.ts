/** What the routes of trainers and operators have in common in their schemas. */
import Type, { type TSchema } from 'typebox'

/** Of an object that is asked with: a field that it does not name is refused. */
export const STRICT = { additionalProperties: false }

/** A body, or a query, that says nothing. */
export const Nothing = Type.Object({}, STRICT)

/** What may be null in an answer. */
export const nullable = <T extends TSchema>(schema: T) => Type.Union([schema, Type.Null()])

export const ErrorReply = Type.Object({
  detail: Type.String(),
  code: Type.String(),
  param: nullable(Type.String()),
})

/** The answer's type is not among them: handlers make JSON that the schema of the answer describes. */
interface RouteFacts {
  tags: string[]
  summary: string
  response: unknown
}

/** The answer as a media type other than JSON. */
export function inMedia(media: string, schema: TSchema) {
  return { description: 'The answer', content: { [media]: { schema } } }
}

/** A route's options: its schema with what all routes share. Parameters that a route does not name are refused. */
export function described<P extends object>(
  tag: string,
  summary: string,
  answer: TSchema | ReturnType<typeof inMedia>,
  parts: P,
): { schema: RouteFacts & P } {
  const response = { 200: answer, '4xx': ErrorReply, '5xx': ErrorReply }
  return { schema: { tags: [tag], summary, querystring: Nothing, ...parts, response } }
}
