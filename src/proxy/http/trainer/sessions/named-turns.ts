/**
 * Resolves the names of turns that trainers and agents use: the index, the turn id, or the id of the response that the
 * agent received.
 */
import { ProxyError } from '../../../../base/errors.ts'

/** Matches a response id: the UUID of the turn after a prefix of the dialect (Gemini: none; Messages: no dashes). */
const RESPONSE_ID =
  /^(?:chatcmpl-|cmpl-|resp_|msg_)?([\da-f]{8})-?([\da-f]{4})-?([\da-f]{4})-?([\da-f]{4})-?([\da-f]{12})$/

/** Returns the turn id of a response id; any other name is returned unchanged. */
export function toTurnId(name: string): string {
  return RESPONSE_ID.exec(name)?.slice(1).join('-') ?? name
}

/**
 * Replaces response ids in the `turns` of a body by turn ids.
 * @throws ProxyError `invalid_request` for a turn that is named twice
 */
export function withTurnNames<Body extends { turns?: Record<string, unknown> }>(body: Body): Body {
  if (body.turns === undefined) return body
  const turns: Record<string, unknown> = Object.create(null)
  for (const [name, value] of Object.entries(body.turns)) {
    const turn = toTurnId(name)
    if (turn in turns) {
      const message = `'turns' contains turn '${turn}' twice, by two forms of its id`
      throw new ProxyError('invalid_request', message, { param: 'turns' })
    }
    turns[turn] = value
  }
  return { ...body, turns }
}
