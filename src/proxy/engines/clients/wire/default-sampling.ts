import type { EngineSampling, EventSink, GenerationEvent } from '../../../../protocol/canonical/events.ts'

/**
 * Returns the defaults to record for a route whose requests are sampled at temperature 1 unless they or the server's
 * defaults set another one.
 */
export function toRecordedDefaults(defaults: Readonly<Record<string, unknown>>): Record<string, number> {
  const numbers = Object.entries(defaults).filter(([, value]) => typeof value === 'number')
  return { temperature: 1, ...Object.fromEntries(numbers as [string, number][]) }
}

/** A sink that forwards all events, and adds the defaults of the sampling parameters to the start. */
export class DefaultSamplingSink implements EventSink {
  readonly #sink: EventSink
  readonly #sampling: EngineSampling

  constructor(sink: EventSink, defaults: Readonly<Record<string, number>>) {
    this.#sink = sink
    this.#sampling = { defaults }
  }

  write(events: readonly GenerationEvent[]): Promise<void> | undefined {
    const [first, ...others] = events
    if (first?.type !== 'start') return this.#sink.write(events)
    return this.#sink.write([{ ...first, sampling: { ...this.#sampling, ...first.sampling } }, ...others])
  }
}
