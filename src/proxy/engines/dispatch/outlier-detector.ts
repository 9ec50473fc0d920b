/**
 * Outlier ejection: a member whose last requests failed receives no new requests for a while, although its health
 * checks succeed. A state machine without timers or I/O; the dispatcher acts on what it returns.
 *
 * As in Envoy's outlier detection (`consecutive_5xx`, `max_ejection_time`, `max_ejection_percent`): consecutive
 * failures eject a member, each further ejection lasts longer, and only a share of all members is ejected at a time. As
 * in LiteLLM's cooldowns, a 429 ejects immediately, for the time in its `Retry-After`.
 */
import type { ErrorCode, ProxyError } from '../../../base/errors.ts'

/**
 * The number of consecutive failures that eject a member: fewer than Envoy's 5, because each failure costs a request a
 * second attempt.
 */
const FAILURES = 3
/**
 * The duration of a first ejection. It is longer than a restart of an engine's worker process takes; Envoy's 30 s would
 * leave a GPU idle after a short fault.
 */
const BASE_EJECTION_MS = 10_000
/**
 * The longest ejection, as Envoy's `max_ejection_time`. After a member was in rotation for longer than this, its next
 * ejection has the base duration again.
 */
const MAX_EJECTION_MS = 300_000
/**
 * The largest share of members that is ejected at a time. If more of them fail, they probably have a common cause, and
 * the others could not carry the load.
 */
const MAX_EJECTED_SHARE = 0.5

const ENGINE_FAULTS: ReadonlySet<ErrorCode> = new Set([
  'engine_failed',
  'engine_lost',
  'engine_timeout',
  'queue_full',
])
/** Statuses of rejections for which the request is not at fault: the proxy's key is invalid, a time-out, overload. */
const ENGINE_FAULT_STATUSES: ReadonlySet<number> = new Set([401, 408, 429])
const TOO_MANY_REQUESTS = 429

/** Returns whether the engine or worker is at fault, and not the request: another member may serve it. */
export function isEngineFault({ code, status }: ProxyError): boolean {
  return ENGINE_FAULTS.has(code) || (code === 'engine_rejected' && ENGINE_FAULT_STATUSES.has(status))
}

/** The failures and ejections of one member. */
interface MemberState {
  /** The number of failures since the last success; overlapping requests count once. */
  failures: number
  lastFailureMs: number
  ejections: number
  ejectedUntilMs: number
}

/** An ejection that begins. */
export interface Ejection {
  forMs: number
  /** The number of consecutive failures of the member when the ejection begins. */
  failures: number
}

export class OutlierDetector {
  readonly #members = new Map<string, MemberState>()

  /** Reports that the member has served a request. */
  reportSuccess(memberId: string): void {
    const member = this.#members.get(memberId)
    if (member !== undefined) member.failures = 0
  }

  /**
   * Counts a failure. Overlapping requests count once, because an engine that is restarted, or aborts all requests for
   * a weight update, fails hundreds at the same time.
   * @param dispatchedAtMs the time at which the request received its slot
   * @param memberCount the number of healthy members, ejected ones included
   * @returns the ejection that begins now, if any
   */
  reportFailure(
    memberId: string,
    error: ProxyError,
    { dispatchedAtMs, nowMs, memberCount }: { dispatchedAtMs: number; nowMs: number; memberCount: number },
  ): Ejection | undefined {
    if (!isEngineFault(error)) return undefined
    const member = this.#getState(memberId)
    if (member.ejectedUntilMs > nowMs) return undefined
    if (dispatchedAtMs >= member.lastFailureMs) {
      member.failures += 1
      member.lastFailureMs = nowMs
    }
    const isLimited = error.status === TOO_MANY_REQUESTS
    if ((!isLimited && member.failures < FAILURES) || !this.#mayEject(nowMs, memberCount)) return undefined
    const forMs = isLimited ? getLimitedForMs(error) : backOffMs(member, nowMs)
    const { failures } = member
    member.ejectedUntilMs = nowMs + forMs
    if (isLimited) member.failures = 0
    else {
      member.ejections += 1
      // On probation: one more failure ejects it again, a success resets the count.
      member.failures = FAILURES - 1
    }
    return { forMs, failures }
  }

  /** Returns the remaining time of the member's ejection in milliseconds; 0 if it is in rotation. */
  getEjectionMs(memberId: string, nowMs: number): number {
    return Math.max(0, (this.#members.get(memberId)?.ejectedUntilMs ?? 0) - nowMs)
  }

  /** Discards the history of a member that left, or that may have been restarted. */
  forget(memberId: string): void {
    this.#members.delete(memberId)
  }

  #mayEject(nowMs: number, memberCount: number): boolean {
    const ejected = this.#members.values().reduce((sum, each) => sum + Number(each.ejectedUntilMs > nowMs), 0)
    return ejected + 1 <= Math.floor(memberCount * MAX_EJECTED_SHARE)
  }

  #getState(memberId: string): MemberState {
    let member = this.#members.get(memberId)
    if (member === undefined) {
      const never = Number.NEGATIVE_INFINITY
      member = { failures: 0, lastFailureMs: never, ejections: 0, ejectedUntilMs: never }
      this.#members.set(memberId, member)
    }
    return member
  }
}

function getLimitedForMs({ retryAfterS }: ProxyError): number {
  return Math.min(MAX_EJECTION_MS, retryAfterS === undefined ? BASE_EJECTION_MS : retryAfterS * 1_000)
}

function backOffMs(member: MemberState, nowMs: number): number {
  if (nowMs - member.ejectedUntilMs > MAX_EJECTION_MS) member.ejections = 0
  return Math.min(MAX_EJECTION_MS, BASE_EJECTION_MS * 2 ** member.ejections)
}
