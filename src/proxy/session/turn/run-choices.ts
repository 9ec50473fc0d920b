/**
 * One call that asks for several answers (`n` above 1): each is a turn, and they stand side by side in the session. For
 * its agent it is one call all the same: it succeeds as a whole or not at all.
 */
import { randomUUID } from 'node:crypto'
import { ProxyError, toProxyError } from '../../../base/errors.ts'
import type { Completion } from '../../../protocol/canonical/completion.ts'
import type { GenerationEvent } from '../../../protocol/canonical/events.ts'
import { agentLeft } from './agent-call.ts'
import type { AgentCall, AwaitedTurn, TurnRunner } from './run-turn.ts'

export interface Choices {
  /** Of the first turn, for the whole call. */
  readonly turnId: string
  readonly startedAtMs: number
  /** What `events` has brought so far, choice by choice. */
  readonly completions: readonly [Completion, ...Completion[]]
  /**
   * Of all choices, as they come. To be read once, to the end or to an error. What fails first fails the call: the
   * other choices are cancelled, and those that are whole are `undelivered`. @throws ProxyError as {@link AwaitedTurn.events}
   */
  readonly events: AsyncIterable<{ choice: number; events: readonly GenerationEvent[] }>
  /** As that of a turn. */
  readonly signal: AbortSignal
  readonly isWhole: boolean
  undelivered(why?: ProxyError): Promise<void>
}

/**
 * Opens the turns, one after the other in the session's order of calls.
 * @param count how many; more than 1
 * @param agentSignal as for {@link TurnRunner.begin}
 * @throws ProxyError as {@link TurnRunner.begin}; no turn is left open then
 */
export async function beginChoices(
  runner: Pick<TurnRunner, 'begin'>,
  call: AgentCall,
  count: number,
  agentSignal: AbortSignal,
): Promise<Choices> {
  const others = new AbortController()
  const signal = AbortSignal.any([agentSignal, others.signal])
  const callId = randomUUID()
  // All at once: they come to stand side by side, as nothing else gets in between.
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
  return choicesOf(turns as [AwaitedTurn, ...AwaitedTurn[]], others)
}

function choicesOf(turns: readonly [AwaitedTurn, ...AwaitedTurn[]], others: AbortController): Choices {
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
  turns: readonly AwaitedTurn[],
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

/** What comes of several streams, as it comes. Each is pulled again once what it brought was taken. */
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

/** Reads what has been cancelled to its end, so that its turn is closed. */
async function drain(stream: AsyncIterator<unknown>): Promise<void> {
  try {
    while (!(await stream.next()).done);
  } catch {
    // Why is known: it was cancelled, or it is what failed.
  }
}

function notBegun(cause: ProxyError): ProxyError {
  return new ProxyError('turn_cancelled', `Another choice of this call could not begin: ${cause.message}`)
}

function siblingFailed(cause: ProxyError | undefined): ProxyError {
  if (cause === undefined) return agentLeft()
  return new ProxyError('turn_cancelled', `Another choice of this call failed: ${cause.message}`)
}
