import { ProxyError } from '../../../base/errors.ts'
import type { ChatBody } from '../../../protocol/canonical/request.ts'

/**
 * Counts the tokens of the prompt of a chat body, exactly as the engine would see it. An estimate would be mistaken for
 * a count, and clients can continue without one. With a session, counts the prompt that a request of this session would
 * have, which may extend recorded tokens.
 * @throws ProxyError `unsupported` with status 501 if no component can count; otherwise as `EngineClient.generate`
 */
export type TokenCounter = (body: ChatBody, signal: AbortSignal, sessionId?: string) => Promise<number>

/** Returns the error for an endpoint that is not implemented: a retry there cannot succeed. */
export function createCannotCountError(message: string): ProxyError {
  return new ProxyError('unsupported', message, { status: 501 })
}
