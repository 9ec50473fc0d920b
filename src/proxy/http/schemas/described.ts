/** What the routes of trainers have in common in their schemas. */
import Type, { type TSchema } from 'typebox'

export const ErrorReply = Type.Object({
  detail: Type.String(),
  code: Type.String(),
  param: Type.Union([Type.String(), Type.Null()]),
})

const NoQuery = Type.Object({}, { additionalProperties: false })

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

/** A route's schema with what all routes share. Parameters that a route does not name are refused. */
export function described<P extends object>(
  tag: string,
  summary: string,
  answer: TSchema | ReturnType<typeof inMedia>,
  parts: P,
): RouteFacts & P {
  const response = { 200: answer, '4xx': ErrorReply, '5xx': ErrorReply }
  return { tags: [tag], summary, querystring: NoQuery, ...parts, response }
}
