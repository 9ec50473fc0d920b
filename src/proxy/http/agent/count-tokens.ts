import type { FastifyReply, FastifyRequest } from 'fastify'
import type { ChatBody } from '../../../protocol/canonical/request.ts'
import type { PartMemo } from '../../../protocol/canonical/request-reader.ts'
import { createDisconnectSignal } from '../transport/on-close.ts'
import { createAgentPolicy } from './agent-policy.ts'
import type { RequestHandlerOptions } from './request-handler.ts'
import { getNamedSession, getSessionId } from './request-session.ts'
import { getSessionBody } from './session-body.ts'

/** Creates a handler that counts the tokens of a prompt. It records no turn and creates no session. */
export function createTokenCounter({ sessions, runner, ...policy }: RequestHandlerOptions) {
  const restrict = createAgentPolicy(policy)
  return async (
    request: FastifyRequest,
    reply: FastifyReply,
    lower: (body: unknown, memo: PartMemo) => ChatBody,
  ): Promise<number> => {
    const { caller } = request
    const sessionOf = caller.is === 'anyone' && !sessions.strict ? getNamedSession : getSessionId
    const sessionId = await sessionOf(request, sessions)
    const { read, memo, waitForSlice } = getSessionBody(request)
    await waitForSlice()
    const body = lower(read.value, memo)
    const allowed = caller.is === 'agent' ? restrict(body).body : body
    return runner.countTokens(sessionId, allowed, createDisconnectSignal(reply))
  }
}
