/**
 * Fail-over of both backends: when the engine or worker that serves a request is lost, another one serves it, within
 * bounds.
 */
import { ProxyError } from '../../../base/errors.ts'
import type { EventSink, GenerationEvent } from '../../../protocol/canonical/events.ts'
import type { ChatBody, GenerationRequest } from '../../../protocol/canonical/request.ts'
import type { Dispatcher, Lease } from './dispatcher.ts'
import { EffortNegotiation, type EffortRegistry, getRenderedBody } from './learned-efforts.ts'
import { isEngineFault } from './outlier-detector.ts'
import { getRequiredCapability } from './placement.ts'
import type { QueuedRequest } from './scheduler.ts'

/**
 * The meaning of a failure. `lost`: the member failed while it served the request, perhaps because of it.
 * `unavailable`: the member is unreachable, and nothing was sampled. `failed`: the member could not serve the request,
 * and another one may. `final`: no other member would succeed.
 */
export type FailureVerdict = 'lost' | 'unavailable' | 'failed' | 'final'

/** The parts of fail-over in which the two backends differ. */
export interface FailoverPolicy {
  dispatcher: Dispatcher
  /**
   * Serves the request at a member, as {@link Backend.generate} does.
   * @param request the request, adapted to the member
   * @param failedAttempts the number of failed attempts of this request
   */
  serve(memberId: string, request: GenerationRequest, sink: EventSink, failedAttempts: number): Promise<void>
  /** Reasoning efforts that members reject; absent: efforts are forwarded unchanged. */
  efforts?: EffortRegistry | undefined
  /** Returns the kind of a member, for the request's spans. */
  getKind(memberId: string): string
  /**
   * Judges a failure. Called before the slot is released, because the next waiting request would otherwise be assigned
   * to a dead member.
   */
  judge(thrown: unknown, memberId: string): FailureVerdict
  /**
   * The number of members after whose loss a request fails if it has no event yet: a request that crashes members must
   * not reach all of them.
   */
  maxLosses: number
  /** Returns the current number of members. */
  countMembers(): number
}

/** The minimum number of attempts, however few members there are: a member that was restarted may succeed. */
const MIN_ATTEMPTS = 3

/**
 * The number of members after whose failure a request fails: a request that makes engines fail must not reach all of
 * them.
 */
const MAX_FAILURES = 3

/**
 * Serves a request by one member after another until one succeeds. A member that rejects the request's reasoning effort
 * receives the request once more, with another effort. After its first event a request stays at its member, since the
 * agent may have received that event.
 * @throws ProxyError as {@link Dispatcher.acquire}; the last member's error once its verdict is `final`, `maxLosses`
 *   members are lost, three or all that could serve it have failed, or as many attempts have failed as there are
 *   members (but at least three). After an abort: `signal.reason`.
 */
export async function generateWithFailover(
  policy: FailoverPolicy,
  request: GenerationRequest,
  sink: EventSink,
  signal: AbortSignal,
): Promise<void> {
  const { requestId, sessionId, body, mustServe, minWeightVersion } = request
  const failed: string[] = []
  const negotiation = policy.efforts && new EffortNegotiation(policy.efforts, getRenderedBody(request))
  let attempts = 0
  let failures = 0
  for (let losses = 0; ; ) {
    const needs = getRequiredCapability(request)
    const requirements = { model: body.model, mustServe, needs, minWeightVersion, avoid: failed }
    const leaseRequest = { requestId, sessionId, ...requirements }
    let lease = acquireLease(leaseRequest, policy, request, signal)
    if (lease instanceof Promise) {
      request.log?.logQueued()
      lease = await lease
    }
    const { memberId } = lease
    const adapted = withBody(request, negotiation?.adaptBody(memberId))
    const span = request.spans?.startEngineRequest({
      ...adapted,
      member: memberId,
      memberKind: policy.getKind(memberId),
    })
    const sent = span ? { ...adapted, traceparent: span.traceparent } : adapted
    let begun = false
    const write = (batch: readonly GenerationEvent[]) => {
      if (begun) return sink.write(batch)
      begun = true
      negotiation?.confirm()
      return sink.write(negotiation?.annotate(batch) ?? batch)
    }
    request.onDispatched?.()
    request.log?.logDispatched(memberId)
    try {
      await policy.serve(memberId, sent, { write }, attempts)
      lease.reportSuccess()
      return
    } catch (thrown) {
      span?.end(signal.aborted ? signal.reason : thrown)
      if (signal.aborted) throw signal.reason
      attempts += 1
      if (!begun && negotiation?.checkRejection(memberId, thrown)) continue
      if (thrown instanceof ProxyError) lease.reportFailure(thrown)
      const verdict = policy.judge(thrown, memberId)
      if (verdict === 'lost') losses += 1
      if (verdict === 'failed') failures += 1
      const hasNext =
        verdict !== 'failed' ||
        (failures < MAX_FAILURES &&
          policy.dispatcher.hasAlternative({ ...requirements, avoid: [...failed, memberId] }))
      if (begun || verdict === 'final' || losses === policy.maxLosses || !hasNext)
        throw begun ? thrown : (negotiation?.toAgentError(thrown) ?? thrown)
      if (failed.length + 1 >= Math.max(MIN_ATTEMPTS, policy.countMembers())) throw thrown
      failed.push(memberId)
      policy.dispatcher.reportFailover()
      request.log?.logFailover(memberId, thrown)
    } finally {
      span?.end()
      lease.release()
    }
  }
}

/**
 * Judges an error response. A request whose engine was silent for half an hour does not fail over, because its agent
 * has waited long enough.
 */
export function judgeResponse(error: ProxyError): FailureVerdict {
  if (error.code === 'engine_aborted') return 'failed'
  return isEngineFault(error) && error.code !== 'engine_timeout' ? 'failed' : 'final'
}

function withBody(request: GenerationRequest, body: ChatBody | undefined): GenerationRequest {
  return body === undefined || body === request.body ? request : ({ ...request, body } as GenerationRequest)
}

function acquireLease(
  leaseRequest: QueuedRequest,
  { dispatcher }: FailoverPolicy,
  { spans }: GenerationRequest,
  signal: AbortSignal,
): Lease | Promise<Lease> {
  const span = spans?.startWait()
  const lease = dispatcher.acquire(leaseRequest, signal)
  if (span === undefined) return lease
  Promise.resolve(lease).then(
    () => span.end(),
    (thrown) => span.end(thrown),
  )
  return lease
}
