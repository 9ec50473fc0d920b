import { ProxyError } from '../../../base/errors.ts'
import type { ChatBody } from '../../../protocol/canonical/request.ts'

/**
 * A function that counts the tokens of a chat body's prompt, exactly as the engine would see it. It does not estimate:
 * a client would take an estimate for a count, and can continue without one. With a session id, it counts the prompt of
 * a request of that session, which may extend recorded tokens.
 * @throws ProxyError `unsupported` with status 501 if no component can count; otherwise as `EngineClient.generate`
 */
export type TokenCounter = (body: ChatBody, signal: AbortSignal, sessionId?: string) => Promise<number>

/**
 * Returns the error of a component that cannot count tokens. Its status, 501, shows clients that a retry cannot
 * succeed.
 */
export function createCannotCountError(message: string): ProxyError {
  return new ProxyError('unsupported', message, { status: 501 })
}
