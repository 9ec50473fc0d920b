/** The weight versions of one call, where an engine's answer does not tell both of them. */
import type { GenerationEnd, GenerationEvent, GenerationStart } from '../../../protocol/canonical/events.ts'
import type { EngineHealthWatch } from './engine-health.ts'

type WeightSource = Pick<EngineHealthWatch, 'weightVersion' | 'timesForgotten'>

/**
 * What an engine's answer does not tell about its weights, its last health check may have. An end after which that is not
 * known any more says so: they need not be those of the start.
 *
 * An answer that comes whole comes when it is over. Its first token is older, by minutes perhaps, and may be of weights
 * that are not there any more: its start has the version that was known when the engine was asked.
 */
export class WeightStamp {
  readonly #engine: WeightSource
  readonly #asked: string | undefined
  readonly #timesForgotten: number
  #isTold = false
  #isStamped = false

  /** To be made when the engine is about to be asked. @param engine as it is at any moment */
  constructor(engine: WeightSource) {
    this.#engine = engine
    this.#asked = engine.weightVersion
    this.#timesForgotten = engine.timesForgotten
  }

  stamp(batch: readonly GenerationEvent[]): readonly GenerationEvent[] {
    const [first] = batch
    const last = batch.at(-1)
    if (first?.type === 'start' && last?.type === 'end') {
      const { start, end } = this.#whole(first, last)
      return [start, ...batch.slice(1, -1), end]
    }
    this.#isTold ||= batch.some((event) => event.type !== 'delta' && event.weightVersion !== undefined)
    if (this.#isTold) return batch
    const version = this.#versionAtEnd(this.#isStamped)
    if (version === undefined) return batch
    this.#isStamped = true
    return batch.map((event) => {
      if (event.type === 'delta') return event
      return event.type === 'end' || version !== null
        ? ({ ...event, weightVersion: version } as typeof event)
        : event
    })
  }

  #whole(start: GenerationStart, end: GenerationEnd): { start: GenerationStart; end: GenerationEnd } {
    const atEnd = end.weightVersion ?? start.weightVersion ?? this.#versionAtEnd(this.#asked !== undefined)
    // Nobody has said that they may have changed: what is known of the end holds for the start.
    const unchanged = this.#engine.timesForgotten === this.#timesForgotten ? (atEnd ?? undefined) : undefined
    const atStart = start.weightVersion ?? this.#asked ?? unchanged
    return {
      start: atStart === undefined ? start : { ...start, weightVersion: atStart },
      end: atEnd === undefined ? end : { ...end, weightVersion: atEnd },
    }
  }

  /** @param wasKnown at the start @returns null: unknown by now */
  #versionAtEnd(wasKnown: boolean): string | null | undefined {
    return this.#engine.weightVersion ?? (wasKnown ? null : undefined)
  }
}
