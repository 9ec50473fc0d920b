/**
 * Runs a request for several choices (`n` above 1). Each choice is a turn, and the turns are adjacent in the session.
 * The request succeeds or fails as a whole.
 */
import { randomUUID } from 'node:crypto'
import { ProxyError, toProxyError } from '../../../base/errors.ts'
import type { Completion } from '../../../protocol/canonical/completion.ts'
import type { GenerationEvent } from '../../../protocol/canonical/events.ts'
import type { AgentRequest, ResponseHandle, TurnRunner } from './run-turn.ts'

/** A sink for the events of several choices; otherwise like `EventSink`. */
export interface ChoiceSink {
  write(batch: { choice: number; events: readonly GenerationEvent[] }): Promise<void> | undefined
}

/** The response handle of a request for several choices. */
export interface ChoicesHandle {
  /** The id of the first turn, which is the id of the response. */
  readonly turnId: string
  readonly startedAtMs: number
  /** The completions so far, by index of the choice. */
  readonly completions: readonly [Completion, ...Completion[]]
  /**
   * Delivers the events of all choices as they arrive. Must be called once. The first failure fails the request: the
   * other choices are cancelled, and completed ones are marked as `undelivered`.
   * @throws ProxyError as {@link ResponseHandle.deliver}
   */
  deliver(sink: ChoiceSink): Promise<void>
  /** Aborts when one of the turns is cancelled. */
  readonly signal: AbortSignal
  readonly isComplete: boolean
  markUndelivered(reason?: ProxyError): Promise<void>
}

/**
 * Opens the turns of a request, which are adjacent in the session.
 * @param count the number of choices, more than 1
 * @param agentSignal as in {@link TurnRunner.begin}
 * @throws ProxyError as {@link TurnRunner.begin}; in this case no turn stays open
 */
export async function beginChoices(
  runner: Pick<TurnRunner, 'begin'>,
  agentRequest: AgentRequest,
  count: number,
  agentSignal: AbortSignal,
): Promise<ChoicesHandle> {
  const others = new AbortController()
  const signal = AbortSignal.any([agentSignal, others.signal])
  const requestId = randomUUID()
  // All turns begin in one step, so that no other request can begin between them.
  const begun = await Promise.allSettled(
    Array.from({ length: count }, (_, index) =>
      runner.begin({ ...agentRequest, choice: { index, of: count, call: requestId } }, signal),
    ),
  )
  const turns = begun.flatMap((one) => (one.status === 'fulfilled' ? [one.value] : []))
  const rejected = begun.find((one) => one.status === 'rejected')
  if (rejected !== undefined) {
    others.abort(createNotBegunError(toProxyError(rejected.reason)))
    // Running the cancelled turns closes them.
    await Promise.allSettled(turns.map((turn) => turn.deliver({ write: () => undefined })))
    throw rejected.reason
  }
  return readChoices(turns as [ResponseHandle, ...ResponseHandle[]], others)
}

function readChoices(
  turns: readonly [ResponseHandle, ...ResponseHandle[]],
  others: AbortController,
): ChoicesHandle {
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
