/** Adapters between pushed events and iterables, for tests that read or script a generation step by step. */
import type { EventSink, GenerationEvent } from '../../src/protocol/canonical/events.ts'
import type { GenerationRequest } from '../../src/protocol/canonical/request.ts'
import type { ResponseHandle } from '../../src/proxy/session/state/live-turn.ts'

type Batch = readonly GenerationEvent[]
export type EventStream = AsyncIterable<Batch>

interface Generator {
  generate(request: GenerationRequest, sink: EventSink, signal: AbortSignal): Promise<void>
}

/** Yields the batches of a generation. Leaving the loop cancels it. */
export function pull(generator: Generator, request: GenerationRequest, signal: AbortSignal) {
  return pullFrom((sink, leaveSignal) =>
    generator.generate(request, sink, AbortSignal.any([signal, leaveSignal])),
  )
}

/**
 * Yields what `run` writes to its sink; the sink accepts a batch when the consumer requests the next one.
 * Nothing runs before the first `next`.
 * @param run receives a signal that aborts when the consumer leaves the loop
 */
export async function* pullFrom(
  run: (sink: EventSink, leaveSignal: AbortSignal) => Promise<void>,
): AsyncGenerator<Batch, void, undefined> {
  const leaving = new AbortController()
  const batches: Batch[] = []
  let accept = () => {}
  let wake = () => {}
  let ended: { error?: unknown } | undefined
  const write = (batch: Batch) => {
    batches.push(batch)
    wake()
    return new Promise<void>((resolve) => {
      accept = resolve
    })
  }
  const finished = run({ write }, leaving.signal)
    .then(() => ({}))
    .catch((error: unknown) => ({ error }))
    .then((outcome) => {
      ended = outcome
      wake()
    })
  try {
    for (;;) {
      const batch = batches.shift()
      if (batch !== undefined) {
        yield batch
        accept()
      } else if (ended) {
        if ('error' in ended) throw ended.error
        return
      } else {
        await new Promise<void>((resolve) => {
          wake = resolve
        })
      }
    }
  } finally {
    if (!ended) {
      leaving.abort(new Error('the test left the loop'))
      await finished
    }
  }
}

/** Writes the batches of a stream to a sink. */
export async function push(stream: EventStream, sink: EventSink): Promise<void> {
  for await (const batch of stream) await sink.write(batch)
}

/** A sink that drops all events. */
export const DISCARD: { write(): undefined } = { write: () => undefined }

/** Delivers a response. @returns its events */
export async function readResponse(response: Pick<ResponseHandle, 'deliver'>): Promise<GenerationEvent[]> {
  const events: GenerationEvent[] = []
  await response.deliver({
    write: (batch) => {
      events.push(...batch)
      return undefined
    },
  })
  return events
}
