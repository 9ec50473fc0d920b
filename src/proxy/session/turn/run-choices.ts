/**
 * Runs a request for several choices (`n` above 1): each is a turn, and the turns are adjacent in the session. The
 * request succeeds as a whole or fails as a whole.
 */
import { randomUUID } from 'node:crypto'
import { ProxyError, toProxyError } from '../../../base/errors.ts'
import type { Completion } from '../../../protocol/canonical/completion.ts'
import type { GenerationEvent } from '../../../protocol/canonical/events.ts'
import type { AgentRequest, ResponseHandle, TurnRunner } from './run-turn.ts'

/** Receives the events of several choices, otherwise as an `EventSink` does. */
export interface ChoiceSink {
  write(batch: { choice: number; events: readonly GenerationEvent[] }): Promise<void> | undefined
}

export interface Choices {
  /** The id of the first turn, which represents the request. */
  readonly turnId: string
  readonly startedAtMs: number
  /** The completions so far, by choice. */
  readonly completions: readonly [Completion, ...Completion[]]
  /**
   * Delivers the events of all choices as they arrive; to be called once. The first failure fails the request: the other
   * choices are cancelled, and completed ones are marked `undelivered`.
   * @throws ProxyError see {@link ResponseHandle.deliver}
   */
  deliver(sink: ChoiceSink): Promise<void>
  /** Aborts when a turn is cancelled. */
  readonly signal: AbortSignal
  readonly isComplete: boolean
  markUndelivered(reason?: ProxyError): Promise<void>
}

/**
 * Opens the turns, one after the other in the session's order.
 * @param count number of choices, more than 1
 * @param agentSignal see {@link TurnRunner.begin}
 * @throws ProxyError see {@link TurnRunner.begin}; no turn is left open then
 */
export async function beginChoices(
  runner: Pick<TurnRunner, 'begin'>,
  agentRequest: AgentRequest,
  count: number,
  agentSignal: AbortSignal,
): Promise<Choices> {
  const others = new AbortController()
  const signal = AbortSignal.any([agentSignal, others.signal])
  const requestId = randomUUID()
  // All begin at once: their indices are adjacent, because no other request begins in between.
  const begun = await Promise.allSettled(
    Array.from({ length: count }, (_, index) =>
      runner.begin({ ...agentRequest, choice: { index, of: count, call: requestId } }, signal),
    ),
  )
  const turns = begun.flatMap((one) => (one.status === 'fulfilled' ? [one.value] : []))
  const rejected = begun.find((one) => one.status === 'rejected')
  if (rejected !== undefined) {
    others.abort(createNotBegunError(toProxyError(rejected.reason)))
    // Their runs close them.
    await Promise.allSettled(turns.map((turn) => turn.deliver({ write: () => undefined })))
    throw rejected.reason
  }
  return readChoices(turns as [ResponseHandle, ...ResponseHandle[]], others)
}

function readChoices(
  turns: readonly [ResponseHandle, ...ResponseHandle[]],
  others: AbortController,
): Choices {
  const [{ turnId, startedAtMs }] = turns
  const completions = turns.map(({ completion }) => completion) as [Completion, ...Completion[]]
  const undelivered = async (reason?: ProxyError) => {
    await Promise.all(turns.map((turn) => turn.markUndelivered(reason)))
  }
  return {
    turnId,
    startedAtMs,
    completions,
    signal: AbortSignal.any(turns.map(({ signal }) => signal)),
    deliver: (sink) => deliverAll(turns, sink, others, undelivered),
    get isComplete() {
      return turns.every(({ isComplete }) => isComplete)
    },
    markUndelivered: undelivered,
  }
}

async function deliverAll(
  turns: readonly ResponseHandle[],
  sink: ChoiceSink,
  others: AbortController,
  undelivered: (reason: ProxyError) => Promise<void>,
): Promise<void> {
  const delivered = turns.map((turn, choice) =>
    turn.deliver({ write: (events) => sink.write({ choice, events }) }),
  )
  try {
    await Promise.all(delivered)
  } catch (thrown) {
    const failure = toProxyError(thrown)
    const reason = createSiblingFailedError(failure)
    others.abort(reason)
    await Promise.allSettled(delivered)
    await undelivered(failure.code === 'agent_gone' ? failure : reason)
    throw failure
  }
}

function createNotBegunError(cause: ProxyError): ProxyError {
  return new ProxyError('turn_cancelled', `Another choice of this request could not begin: ${cause.message}`)
}

function createSiblingFailedError(cause: ProxyError): ProxyError {
  return new ProxyError('turn_cancelled', `Another choice of this request failed: ${cause.message}`)
}
