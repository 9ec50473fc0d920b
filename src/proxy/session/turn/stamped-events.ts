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

/** Clients read the usage of every answer. Who does not count, as workers of version 1, has its tokens counted. */
export function withUsage(end: GenerationEnd, { start, tokenIds }: Completion): GenerationEnd {
  if (end.usage) return end
  const [prompt, completion] = [start?.promptTokenIds?.length ?? 0, tokenIds.length]
  const usage = { prompt_tokens: prompt, completion_tokens: completion, total_tokens: prompt + completion }
  return { ...end, usage }
}
