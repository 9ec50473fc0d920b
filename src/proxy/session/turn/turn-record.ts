/** The data of a turn that is recorded when it is closed. */
import { ProxyError } from '../../../base/errors.ts'
import type { GenerationEvent } from '../../../protocol/canonical/events.ts'
import { PromptIds } from '../../../protocol/token-ids/prompt-ids.ts'
import { isTokenId } from '../../../protocol/token-ids/token-ids.ts'
import type { TurnOutcome } from '../../store/port/turn-store.ts'
import { inexactReason } from '../prompts/exactness.ts'
import { unnamedPart } from './retries/redelivery.ts'
import type { RunningTurn } from './running-turn.ts'

/**
 * Validates data of engines without a field here, which is stored and forwarded unchanged. If it could not be
 * serialized, the turn would stay open.
 * @throws ProxyError `engine_failed` for nesting that JSON cannot represent
 */
export function refuseUnwritable(event: GenerationEvent): void {
  const unnamed = event.type === 'delta' ? event.extra : event.type === 'end' ? event.usage : undefined
  if (unnamed === undefined) return
  try {
    JSON.stringify(unnamed)
  } catch (cause) {
    throw new ProxyError('engine_failed', 'The response of the engine is nested too deeply', { cause })
  }
}

export function turnOutcome(
  turn: RunningTurn,
  status: TurnOutcome['status'],
  failure: ProxyError | null,
  endedAtMs: number,
): TurnOutcome {
  const { completion: fold, open, generation } = turn
  const { start, end } = fold
  const inexact = inexactReason(fold)
  const answer = unnamedPart(fold)
  const hasIds = fold.tokenIds.every(isTokenId)
  return {
    turnId: open.turnId,
    sessionId: open.sessionId,
    epoch: open.epoch,
    status,
    endedAtMs,
    firstTokenAtMs: turn.firstTokenAtMs ?? null,
    model: start?.model ?? generation.body.model ?? null,
    engine: start?.engine ?? null,
    completionText: fold.content,
    reasoning: fold.reasoning,
    toolCalls: JSON.stringify(fold.toolCalls),
    finishReason: end?.finishReason ?? null,
    stopReason: end?.stopReason === undefined ? null : JSON.stringify(end.stopReason),
    promptTokenIds: start?.promptTokenIds ?? PromptIds.of(),
    // An invalid id would become another one in 32 bits, so that none is stored then.
    completionTokenIds: Int32Array.from(hasIds ? fold.tokenIds : []),
    completionLogprobs: Float64Array.from(fold.logprobs),
    exact: inexact === null,
    inexactReason: inexact,
    weightVersionStart: fold.details?.firstVersion ?? start?.weightVersion ?? null,
    weightVersionEnd: (end?.weightVersion === undefined ? start?.weightVersion : end.weightVersion) ?? null,
    usage: end?.usage ? JSON.stringify(end.usage) : null,
    annotations: JSON.stringify({
      ...turn.annotations,
      ...start?.annotations,
      answer,
      call_ids: turn.calls.isEmpty ? undefined : turn.calls.names,
      sampling: start?.sampling,
    }),
    ...(fold.details && hasIds && { details: fold.details.pack(fold.tokenIds.length) }),
    error: failure && { code: failure.code, message: failure.message },
  }
}
