/**
 * Redelivers committed responses to retries: converts them to events, from which any dialect produces the original
 * response.
 */
import { CompletionBuilder } from '../../../../protocol/canonical/completion.ts'
import type {
  GenerationDelta,
  GenerationEnd,
  GenerationStart,
} from '../../../../protocol/canonical/events.ts'
import type { ToolCall } from '../../../../protocol/canonical/messages.ts'
import { PromptIds } from '../../../../protocol/token-ids/prompt-ids.ts'
import type { TurnRecord, TurnStore } from '../../../store/port/turn-store.ts'
import type { ResponseHandle } from '../../state/live-turn.ts'

/** The parts of a response that are recorded as an annotation, because the store has no columns for them. */
interface ResponseExtras {
  refusal?: string
  extra?: Record<string, unknown>
}

/** Returns the parts of a completion without a column. @returns undefined if it has none */
export function getResponseExtras({ refusal, extra }: CompletionBuilder): ResponseExtras | undefined {
  const unnamed: ResponseExtras = {
    ...(refusal !== null && { refusal }),
    ...(Object.keys(extra).length > 0 && { extra }),
  }
  return Object.keys(unnamed).length > 0 ? unnamed : undefined
}

/**
 * Returns whether a turn's record contains its complete response. It does not if the agent requested logprobs: their
 * entries, with texts and alternatives, are forwarded but not stored.
 */
export function isRestorable({ params }: Pick<TurnRecord, 'params'>): boolean {
  const { logprobs } = JSON.parse(params) as { logprobs?: unknown }
  return logprobs === undefined || logprobs === null || logprobs === false
}

/** A committed response that is delivered to a retry. */
interface Redelivery
  extends Pick<ResponseHandle, 'turnId' | 'startedAtMs' | 'endedAtMs' | 'completion' | 'deliver'> {
  /** The number of retries that received it, including this one. */
  retriesServed: number
}

/**
 * Prepares the redelivery of a turn's response to a retry, and records it.
 * @returns undefined if the turn no longer exists
 */
export async function redeliver(
  store: Pick<TurnStore, 'getTurn' | 'markRedelivered'>,
  { sessionId, turnId }: Pick<TurnRecord, 'sessionId' | 'turnId'>,
  retryCount: number,
): Promise<Redelivery | undefined> {
  const turn = await store.getTurn(sessionId, turnId)
  if (turn === undefined) return undefined
  const retriesServed = await store.markRedelivered(sessionId, turnId, retryCount)
  if (retriesServed === undefined) return undefined
  const completion = new CompletionBuilder()
  for (const event of [getStart(turn), toDelta(turn), toEnd(turn)]) completion.add(event)
  return {
    turnId,
    startedAtMs: turn.startedAtMs,
    endedAtMs: turn.endedAtMs ?? undefined,
    completion,
    deliver: async (sink) => {
      await sink.write(completion.getEventsSoFar())
    },
    retriesServed,
  }
}

function getStart({ engine, model, promptTokenIds, weightVersionStart }: TurnRecord): GenerationStart {
  return {
    type: 'start',
    engine: engine ?? '',
    model: model ?? undefined,
    promptTokenIds: promptTokenIds.length > 0 ? PromptIds.from(promptTokenIds) : undefined,
    weightVersion: weightVersionStart ?? undefined,
  }
}

function toDelta(turn: TurnRecord): GenerationDelta {
  const calls = JSON.parse(turn.toolCalls) as ToolCall[]
  const { answer } = JSON.parse(turn.annotations) as { answer?: ResponseExtras }
  return {
    type: 'delta',
    ...(turn.completionText !== null && { content: turn.completionText }),
    ...(turn.reasoning !== null && { reasoning: turn.reasoning }),
    ...(calls.length > 0 && { toolCalls: calls.map((call, index) => ({ index, ...call })) }),
    tokenIds: [...turn.completionTokenIds],
    logprobs: [...turn.completionLogprobs],
    ...answer,
  }
}

function toEnd({ finishReason, stopReason, usage, weightVersionEnd }: TurnRecord): GenerationEnd {
  return {
    type: 'end',
    finishReason: finishReason ?? 'stop',
    stopReason: stopReason === null ? undefined : JSON.parse(stopReason),
    usage: usage === null ? undefined : JSON.parse(usage),
    weightVersion: weightVersionEnd ?? undefined,
  }
}
