import type { GenerationEnd, GenerationEvent, GenerationStart } from '../../../protocol/canonical/events.ts'
import type { EngineHealthWatch } from './engine-health.ts'

type WeightSource = Pick<EngineHealthWatch, 'weightVersion' | 'timesForgotten' | 'timesUpdated'>

/**
 * A filter that adds weight versions that an engine's response omits, from the engine's last health check. If the
 * version has been discarded since the start, the end is marked as unknown (null), because the weights may have
 * changed.
 *
 * A complete response arrives when sampling has ended. Its first token is older, perhaps by minutes, and may have been
 * sampled from earlier weights. The start event therefore receives the version that was known at dispatch. If the
 * response was cut, it has no end event that could show a change; its version is then unknown unless it is the same as
 * at dispatch. A stream that was cut has no end event either: {@link haveWeightsChanged} reports a change since its start.
 */
export class WeightStamp {
  readonly #engine: WeightSource
  readonly #versionAtDispatch: string | undefined
  readonly #timesForgotten: number
  #isReported = false
  #isStamped = false
  /** The version in the start event, and what was known of the engine then. */
  #atStart:
    | { version: string | undefined; engineVersion: string | undefined; timesUpdated: number }
    | undefined

  /**
   * Must be constructed just before dispatch, because it stores the current version.
   * @param engine read again for each batch
   */
  constructor(engine: WeightSource) {
    this.#engine = engine
    this.#versionAtDispatch = engine.weightVersion
    this.#timesForgotten = engine.timesForgotten
  }

  /** Returns the batch with the versions that the engine omits. */
  stamp(batch: readonly GenerationEvent[]): readonly GenerationEvent[] {
    const stamped = this.#stamp(batch)
    const [start] = stamped
    if (start?.type === 'start') {
      const { weightVersion: engineVersion, timesUpdated } = this.#engine
      this.#atStart = { version: start.weightVersion, engineVersion, timesUpdated }
    }
    return stamped
  }

  /**
   * Whether the weights have changed, or may have, since the start event stated their version. An unknown version alone
   * does not count: the failure of one request discards it, and an engine that terminates or aborts for an update fails
   * all of its requests at the same time. A version other than that of the start does not count if it was known then: the
   * engine reported a newer one in the start than in its last health check.
   */
  get haveWeightsChanged(): boolean {
    if (this.#atStart?.version === undefined) return false
    const { version, engineVersion, timesUpdated } = this.#atStart
    const { weightVersion: current } = this.#engine
    if (current === undefined) return this.#engine.timesUpdated !== timesUpdated
    return current !== version && current !== engineVersion
  }

  #stamp(batch: readonly GenerationEvent[]): readonly GenerationEvent[] {
    const [first] = batch
    const last = batch.at(-1)
    if (first?.type === 'start' && last?.type === 'end') {
      const { start, end } = this.#stampComplete(first, last)
      return [start, ...batch.slice(1, -1), end]
    }
    if (first?.type === 'start' && first.isComplete) return [this.#stampCut(first), ...batch.slice(1)]
    this.#isReported ||= batch.some((event) => event.type !== 'delta' && event.weightVersion !== undefined)
    if (this.#isReported) return batch
    const version = this.#getVersion(this.#isStamped)
    if (version === undefined) return batch
    this.#isStamped = true
    return batch.map((event) => {
      if (event.type === 'delta') return event
      return event.type === 'end' || version !== null
        ? ({ ...event, weightVersion: version } as typeof event)
        : event
    })
  }

  #stampComplete(start: GenerationStart, end: GenerationEnd): { start: GenerationStart; end: GenerationEnd } {
    const atEnd =
      end.weightVersion ?? start.weightVersion ?? this.#getVersion(this.#versionAtDispatch !== undefined)
    // If the weights have not changed since dispatch, the version at the end applies to the start too.
    const unchanged = this.#engine.timesForgotten === this.#timesForgotten ? (atEnd ?? undefined) : undefined
    const atStart = start.weightVersion ?? this.#versionAtDispatch ?? unchanged
    return {
      start: atStart === undefined ? start : { ...start, weightVersion: atStart },
      end: atEnd === undefined ? end : { ...end, weightVersion: atEnd },
    }
  }

  #stampCut(start: GenerationStart): GenerationStart {
    const { weightVersion: current, timesForgotten } = this.#engine
    const isUnchanged =
      timesForgotten === this.#timesForgotten && (this.#versionAtDispatch ?? current) === current
    const version = start.weightVersion ?? (isUnchanged ? current : undefined)
    return version === undefined ? start : { ...start, weightVersion: version }
  }

  /** Returns the engine's current version; null if it is unknown now, but was known at the start. */
  #getVersion(wasKnown: boolean): string | null | undefined {
    return this.#engine.weightVersion ?? (wasKnown ? null : undefined)
  }
}
