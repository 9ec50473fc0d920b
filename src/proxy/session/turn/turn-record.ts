/** The data that is recorded when a turn is closed, and the data that the proxy adds to an engine's events. */
import { ProxyError } from '../../../base/errors.ts'
import type { Completion } from '../../../protocol/canonical/completion.ts'
import type { GenerationEnd, GenerationEvent } from '../../../protocol/canonical/events.ts'
import { PromptIds } from '../../../protocol/token-ids/prompt-ids.ts'
import { isTokenId } from '../../../protocol/token-ids/token-ids.ts'
import type { TurnOutcome } from '../../store/port/turn-store.ts'
import { findInexactReason } from '../prompts/exactness.ts'
import { getResponseExtras } from './retries/redelivery.ts'
import type { RunningTurn } from './running-turn.ts'

/**
 * Validates the fields of an event that are stored and forwarded without being interpreted. If they could not be
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

/** The end of a turn without its response. */
export type TurnEnd = Pick<
  TurnOutcome,
  | 'turnId'
  | 'sessionId'
  | 'epoch'
  | 'status'
  | 'endedAtMs'
  | 'firstTokenAtMs'
  | 'model'
  | 'engine'
  | 'annotations'
  | 'error'
>

/** Returns the end of a turn without annotations. @param failure null for a completed turn */
export function toTurnEnd(
  { completion, open, generation, firstTokenAtMs }: RunningTurn,
  status: TurnOutcome['status'],
  failure: ProxyError | null,
  endedAtMs: number,
): TurnEnd {
  const { start } = completion
  return {
    turnId: open.turnId,
    sessionId: open.sessionId,
    epoch: open.epoch,
    status,
    endedAtMs,
    firstTokenAtMs: firstTokenAtMs ?? null,
    model: start?.model ?? generation.body.model ?? null,
    engine: start?.engine ?? null,
    annotations: '{}',
    error: failure && { code: failure.code, message: failure.message },
  }
}

/**
 * Returns the record of a turn whose response is lost. Each attempt to commit it needs another record, because the
 * store takes ownership of its arrays.
 */
export function toLostOutcome(end: TurnEnd, inexactReason: string): TurnOutcome {
  return {
    ...end,
    completionText: null,
    reasoning: null,
    toolCalls: '[]',
    finishReason: null,
    stopReason: null,
    promptTokenIds: PromptIds.of(),
    completionTokenIds: new Int32Array(0),
    completionLogprobs: new Float64Array(0),
    exact: false,
    inexactReason,
    weightVersionStart: null,
    weightVersionEnd: null,
    usage: null,
  }
}

/**
 * Returns the record of a turn's end.
 * @param failure null for a completed turn
 * @throws RangeError if a part of it is longer than the longest string
 */
export function toOutcome(
  turn: RunningTurn,
  status: TurnOutcome['status'],
  failure: ProxyError | null,
  endedAtMs: number,
): TurnOutcome {
  const { completion } = turn
  const { start, end } = completion
  const inexact = findInexactReason(completion)
  const extras = getResponseExtras(completion)
  const hasIds = completion.tokenIds.every(isTokenId)
  return {
    ...toTurnEnd(turn, status, failure, endedAtMs),
    completionText: completion.content,
    reasoning: completion.reasoning,
    toolCalls: JSON.stringify(completion.toolCalls),
    finishReason: end?.finishReason ?? null,
    stopReason: end?.stopReason === undefined ? null : JSON.stringify(end.stopReason),
    promptTokenIds: start?.promptTokenIds ?? PromptIds.of(),
    // No ids are stored if one is invalid, because it would become another id in 32 bits.
    completionTokenIds: Int32Array.from(hasIds ? completion.tokenIds : []),
    completionLogprobs: Float64Array.from(completion.logprobs),
    exact: inexact === null,
    inexactReason: inexact,
    weightVersionStart: completion.details?.firstVersion ?? start?.weightVersion ?? null,
    weightVersionEnd: findLastVersion(completion, failure),
    usage: end?.usage ? JSON.stringify(end.usage) : null,
    annotations: JSON.stringify({
      ...turn.annotations,
      ...start?.annotations,
      answer: extras,
      call_ids: turn.toolCalls.isEmpty ? undefined : turn.toolCalls.names,
      sampling: start?.sampling,
    }),
    ...(completion.details && hasIds && { details: completion.details.pack(completion.tokenIds.length) }),
  }
}

/** Returns the weight version of the last token; null if it is unknown. */
function findLastVersion(
  { start, end }: Pick<Completion, 'start' | 'end'>,
  failure: ProxyError | null,
): string | null {
  if (end?.weightVersion !== undefined) return end.weightVersion
  return failure?.weightsChanged ? null : (start?.weightVersion ?? null)
}

/** Values that are recorded if an engine does not report its own. */
interface FallbackValues {
  /**
   * The announced weight version at the time of dispatch, for the start: a response that is not streamed arrives long
   * after its first token was sampled.
   */
  readonly weightsAtDispatch: string | undefined
  /** The currently announced weight version, for the end: it may change during the response. */
  readonly weightsNow: string | undefined
  readonly logprobsMode: string | undefined
}

/** Adds the values that the engine does not report to its start and end events. */
export function addFallbackValues(event: GenerationEvent, stamps: FallbackValues): GenerationEvent {
  if (event.type === 'delta') return event
  const { logprobsMode } = stamps
  const weightVersion = event.type === 'start' ? stamps.weightsAtDispatch : stamps.weightsNow
  const versioned =
    weightVersion === undefined || typeof event.weightVersion === 'string'
      ? event
      : { ...event, weightVersion }
  if (versioned.type !== 'start' || logprobsMode === undefined) return versioned
  return { ...versioned, sampling: { logprobsMode, ...versioned.sampling } }
}

/** The average for English text and code with current tokenizers. */
const BYTES_PER_TOKEN = 4

/**
 * Adds usage to an end without it, because clients expect usage in every response. For an engine that does not count
 * tokens, such as a worker of version 1, the proxy counts the token ids. Without ids, it estimates the number from the
 * text, because agents treat a response of no tokens as empty.
 */
export function withUsage(end: GenerationEnd, sampled: Completion): GenerationEnd {
  if (end.usage) return end
  const { start, tokenIds } = sampled
  const prompt = start?.promptTokenIds?.length ?? 0
  const completion = tokenIds.length || Math.ceil(countTextBytes(sampled) / BYTES_PER_TOKEN)
  const usage = { prompt_tokens: prompt, completion_tokens: completion, total_tokens: prompt + completion }
  return { ...end, usage }
}

function countTextBytes({ content, reasoning, toolCalls }: Completion): number {
  const texts = toolCalls.map((call) => call.function.name + call.function.arguments)
  return Buffer.byteLength([reasoning ?? '', content ?? '', ...texts].join(''))
}
