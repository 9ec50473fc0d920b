/** The data of a turn that is recorded when it is closed. */
import { ProxyError } from '../../../base/errors.ts'
import type { GenerationEvent } from '../../../protocol/canonical/events.ts'
import { PromptIds } from '../../../protocol/token-ids/prompt-ids.ts'
import { isTokenId } from '../../../protocol/token-ids/token-ids.ts'
import type { TurnOutcome } from '../../store/port/turn-store.ts'
import { findInexactReason } from '../prompts/exactness.ts'
import { getUnnamedPart } from './retries/redelivery.ts'
import type { RunningTurn } from './running-turn.ts'

/**
 * Validates data of engines without a field here, which is stored and forwarded unchanged. If it could not be
 * serialized, the turn would stay open.
 * @throws ProxyError `engine_failed` for nesting that JSON cannot represent
 */
export function rejectUnserializable(event: GenerationEvent): void {
  const unnamed = event.type === 'delta' ? event.extra : event.type === 'end' ? event.usage : undefined
  if (unnamed === undefined) return
  try {
    JSON.stringify(unnamed)
  } catch (cause) {
    throw new ProxyError('engine_failed', 'The response of the engine is nested too deeply', { cause })
  }
}

export function toOutcome(
  turn: RunningTurn,
  status: TurnOutcome['status'],
  failure: ProxyError | null,
  endedAtMs: number,
): TurnOutcome {
  const { completion, open, generation } = turn
  const { start, end } = completion
  const inexact = findInexactReason(completion)
  const extras = getUnnamedPart(completion)
  const hasIds = completion.tokenIds.every(isTokenId)
  return {
    turnId: open.turnId,
    sessionId: open.sessionId,
    epoch: open.epoch,
    status,
    endedAtMs,
    firstTokenAtMs: turn.firstTokenAtMs ?? null,
    model: start?.model ?? generation.body.model ?? null,
    engine: start?.engine ?? null,
    completionText: completion.content,
    reasoning: completion.reasoning,
    toolCalls: JSON.stringify(completion.toolCalls),
    finishReason: end?.finishReason ?? null,
    stopReason: end?.stopReason === undefined ? null : JSON.stringify(end.stopReason),
    promptTokenIds: start?.promptTokenIds ?? PromptIds.of(),
    // An invalid id would become another one in 32 bits, so that none is stored then.
    completionTokenIds: Int32Array.from(hasIds ? completion.tokenIds : []),
    completionLogprobs: Float64Array.from(completion.logprobs),
    exact: inexact === null,
    inexactReason: inexact,
    weightVersionStart: completion.details?.firstVersion ?? start?.weightVersion ?? null,
    weightVersionEnd: (end?.weightVersion === undefined ? start?.weightVersion : end.weightVersion) ?? null,
    usage: end?.usage ? JSON.stringify(end.usage) : null,
    annotations: JSON.stringify({
      ...turn.annotations,
      ...start?.annotations,
      answer: extras,
      call_ids: turn.toolCalls.isEmpty ? undefined : turn.toolCalls.names,
      sampling: start?.sampling,
    }),
    ...(completion.details && hasIds && { details: completion.details.pack(completion.tokenIds.length) }),
    error: failure && { code: failure.code, message: failure.message },
  }
}
