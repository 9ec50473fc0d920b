/** Data that the proxy adds to an engine's events before they are recorded. */
import type { Completion } from '../../../protocol/canonical/completion.ts'
import type { GenerationEnd, GenerationEvent } from '../../../protocol/canonical/events.ts'

/** Values for engines that do not report them. */
interface Stamps {
  /** The version at the time of dispatch: a complete response arrives long after its first token. */
  readonly weightsAtDispatch: string | undefined
  /** The current version, because it may change during the response. */
  readonly weightsNow: string | undefined
  readonly logprobsMode: string | undefined
}

export function addStamps(event: GenerationEvent, stamps: Stamps): GenerationEvent {
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

/** The average for English and code with current tokenizers. */
const BYTES_PER_TOKEN = 4

/**
 * Adds usage to the end of a response, which clients expect in every one. If an engine does not count tokens, as
 * workers of version 1, the proxy counts its ids; if it reports no ids, the proxy estimates the number from the text,
 * because agents treat a response of no tokens as empty.
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
