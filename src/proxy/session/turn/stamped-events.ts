/** What the proxy adds to an engine's events on their way to the record. */
import type { Completion } from '../../../protocol/canonical/completion.ts'
import type { GenerationEnd, GenerationEvent } from '../../../protocol/canonical/events.ts'

/** What stands in for the engine's own word, where it has none. */
interface Stamps {
  /** As it was when the engine was asked: an answer that comes whole comes long after its first token. */
  readonly weightsAsked: string | undefined
  /** As it is at this moment, because it may change mid-way. */
  readonly weightsNow: string | undefined
  readonly logprobsMode: string | undefined
}

export function stamped(event: GenerationEvent, stamps: Stamps): GenerationEvent {
  if (event.type === 'delta') return event
  const { logprobsMode } = stamps
  const weightVersion = event.type === 'start' ? stamps.weightsAsked : stamps.weightsNow
  const versioned =
    weightVersion === undefined || typeof event.weightVersion === 'string'
      ? event
      : { ...event, weightVersion }
  if (versioned.type !== 'start' || logprobsMode === undefined) return versioned
  return { ...versioned, sampling: { logprobsMode, ...versioned.sampling } }
}

/** Of English and code under the tokenizers of today. */
const BYTES_PER_TOKEN = 4

/**
 * Clients read the usage of every answer. Who does not count, as workers of version 1, has its tokens counted; who tells
 * no ids either has them guessed from the text, because agents take an answer of no tokens for an empty one.
 */
export function withUsage(end: GenerationEnd, sampled: Completion): GenerationEnd {
  if (end.usage) return end
  const { start, tokenIds } = sampled
  const prompt = start?.promptTokenIds?.length ?? 0
  const completion = tokenIds.length || Math.ceil(textBytes(sampled) / BYTES_PER_TOKEN)
  const usage = { prompt_tokens: prompt, completion_tokens: completion, total_tokens: prompt + completion }
  return { ...end, usage }
}

function textBytes({ content, reasoning, toolCalls }: Completion): number {
  const calls = toolCalls.map((call) => call.function.name + call.function.arguments)
  return Buffer.byteLength([reasoning ?? '', content ?? '', ...calls].join(''))
}
