import { ProxyError } from '../../../base/errors.ts'
import type { ChatBody } from '../../../protocol/canonical/request.ts'

/**
 * Counts the tokens of the prompt that a chat's body becomes, exactly as the engine would see it. A guess would be taken
 * for a count; who asks knows how to go on without one. With a session it is the prompt that a call of this session
 * would make, which may go on from recorded tokens.
 * @throws ProxyError `unsupported` with status 501 where nothing can count; else as `EngineClient.generate`
 */
export type CountTokens = (body: ChatBody, signal: AbortSignal, sessionId?: string) => Promise<number>

/** Not implemented: no other call to the same place will be answered either. */
export function createCannotCountError(message: string): ProxyError {
  return new ProxyError('unsupported', message, { status: 501 })
}
