/**
 * Runs a request for several choices (`n` above 1): each is a turn, and the turns are adjacent in the session. The
 * request succeeds as a whole or fails as a whole.
 */
import { randomUUID } from 'node:crypto'
import { ProxyError, toProxyError } from '../../../base/errors.ts'
import type { Completion } from '../../../protocol/canonical/completion.ts'
import type { GenerationEvent } from '../../../protocol/canonical/events.ts'
import { agentLeft } from './agent-request.ts'
import type { AgentRequest, ResponseHandle, TurnRunner } from './run-turn.ts'

export interface Choices {
  /** The id of the first turn, which represents the request. */
  readonly turnId: string
  readonly startedAtMs: number
  /** The completions received through `events` so far, by choice. */
  readonly completions: readonly [Completion, ...Completion[]]
  /**
   * The events of all choices as they arrive, to be read once, to the end or to an error. The first failure fails the
   * request: the other choices are cancelled, and completed ones are marked `undelivered`. @throws ProxyError see
   * {@link ResponseHandle.events}
   */
  readonly events: AsyncIterable<{ choice: number; events: readonly GenerationEvent[] }>
  /** Aborts when a turn is cancelled. */
  readonly signal: AbortSignal
  readonly isWhole: boolean
  undelivered(why?: ProxyError): Promise<void>
}

/**
 * Opens the turns, one after the other in the session's order.
 * @param count number of choices, more than 1
 * @param agentSignal see {@link TurnRunner.begin}
 * @throws ProxyError see {@link TurnRunner.begin}; no turn is left open then
 */
export async function beginChoices(
  runner: Pick<TurnRunner, 'begin'>,
  call: AgentRequest,
  count: number,
  agentSignal: AbortSignal,
): Promise<Choices> {
  const others = new AbortController()
  const signal = AbortSignal.any([agentSignal, others.signal])
  const callId = randomUUID()
  // All begin at once: their indices are adjacent, because no other request begins in between.
  const begun = await Promise.allSettled(
    Array.from({ length: count }, (_, index) =>
      runner.begin({ ...call, choice: { index, of: count, call: callId } }, signal),
    ),
  )
  const turns = begun.flatMap((one) => (one.status === 'fulfilled' ? [one.value] : []))
  const refused = begun.find((one) => one.status === 'rejected')
  if (refused !== undefined) {
    others.abort(notBegun(toProxyError(refused.reason)))
    await Promise.all(turns.map(({ events }) => drain(events[Symbol.asyncIterator]())))
    throw refused.reason
  }
  return readChoices(turns as [ResponseHandle, ...ResponseHandle[]], others)
}

function readChoices(
  turns: readonly [ResponseHandle, ...ResponseHandle[]],
  others: AbortController,
): Choices {
  const [{ turnId, startedAtMs }] = turns
  const completions = turns.map(({ completion }) => completion) as [Completion, ...Completion[]]
  const undelivered = async (why?: ProxyError) => {
    await Promise.all(turns.map((turn) => turn.undelivered(why)))
  }
  return {
    turnId,
    startedAtMs,
    completions,
    signal: AbortSignal.any(turns.map(({ signal }) => signal)),
    events: allOrNothing(turns, others, undelivered),
    get isWhole() {
      return turns.every(({ isWhole }) => isWhole)
    },
    undelivered,
  }
}

async function* allOrNothing(
  turns: readonly ResponseHandle[],
  others: AbortController,
  undelivered: (why: ProxyError) => Promise<void>,
): Choices['events'] {
  const streams = turns.map(({ events }) => events[Symbol.asyncIterator]())
  let failure: ProxyError | undefined
  let isRead = false
  try {
    for await (const [choice, events] of interleaved(streams)) yield { choice, events }
    isRead = true
  } catch (thrown) {
    failure = toProxyError(thrown)
    throw failure
  } finally {
    if (!isRead) {
      const why = siblingFailed(failure)
      others.abort(why)
      await Promise.all(streams.map(drain))
      await undelivered(failure?.code === 'agent_gone' ? failure : why)
    }
  }
}

type Arrival<T> = { index: number; result: IteratorResult<T> } | { thrown: unknown }

/** Merges several streams in order of arrival. Each is pulled again after its result has been consumed. */
async function* interleaved<T>(streams: readonly AsyncIterator<T>[]): AsyncGenerator<readonly [number, T]> {
  const arrived: Arrival<T>[] = []
  let wake = () => {}
  const pull = async (index: number) => {
    try {
      arrived.push({ index, result: await streams[index]!.next() })
    } catch (thrown) {
      arrived.push({ thrown })
    }
    wake()
  }
  for (const index of streams.keys()) void pull(index)
  for (let running = streams.length; running > 0; ) {
    if (arrived.length === 0) {
      await new Promise<void>((resolve) => {
        wake = resolve
      })
    }
    const next = arrived.shift()!
    if ('thrown' in next) throw next.thrown
    if (next.result.done) running -= 1
    else {
      yield [next.index, next.result.value] as const
      void pull(next.index)
    }
  }
}

/** Reads a cancelled stream to its end, so that its turn is closed. */
async function drain(stream: AsyncIterator<unknown>): Promise<void> {
  try {
    while (!(await stream.next()).done);
  } catch {
    // The reason is known: the stream was cancelled, or it is the one that failed.
  }
}

function notBegun(cause: ProxyError): ProxyError {
  return new ProxyError('turn_cancelled', `Another choice of this request could not begin: ${cause.message}`)
}

function siblingFailed(cause: ProxyError | undefined): ProxyError {
  if (cause === undefined) return agentLeft()
  return new ProxyError('turn_cancelled', `Another choice of this request failed: ${cause.message}`)
}
