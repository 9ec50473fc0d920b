/**
 * Decides which engine or worker serves which request: a state machine without timers, promises or I/O. The caller
 * passes the time and acts on the return values; `dispatcher.ts` does so.
 *
 * Requests that cannot be served immediately wait in one bounded queue. After each change that may free a slot, the
 * queue is walked in order of arrival, so that the slot is assigned to the oldest request that can use it. Candidates
 * are computed once per walk for all requests with equal requirements, since thousands may wait for hundreds of
 * members.
 */
import {
  chooseMember,
  hasFreeSlot,
  listCandidates,
  type Member,
  type MemberLoad,
  type PlacementRequirements,
} from './placement.ts'

export interface SchedulerOptions {
  /** The number of requests that may wait; further ones are rejected. */
  queueLimit: number
  /**
   * The time that a request waits while no member could serve it. The wait for a member that is merely busy is
   * unlimited.
   */
  waitMs: number
}

export interface QueuedRequest extends PlacementRequirements {
  requestId: string
  sessionId: string
}

/** A slot that a request occupies until `release(requestId)`. */
export interface Assignment {
  requestId: string
  memberId: string
}

/** The outcome of a submission: the request has a slot, waits for one, or is rejected. */
export type SubmissionOutcome =
  | { outcome: 'assigned'; memberId: string }
  | { outcome: 'waiting' }
  | { outcome: 'queue_full' }

export interface SchedulerStats {
  members: MemberLoad[]
  waiting: number
  /** The number of sessions with affinity to a member. */
  sessions: number
  /** The number of times that a session left the member that it had affinity to. */
  moves: number
  paused: boolean
}

/**
 * The number of sessions whose affinity is stored; beyond it, that of the least recently active session is discarded. A
 * limit is needed because a worker may not learn that a session has ended, and an agent may leave without ending its
 * session.
 */
const MAX_HOMES = 100_000

interface WaitingRequest extends QueuedRequest {
  /** The time at which the request fails unless a member that could serve it has appeared. */
  expiresAtMs: number
  /** False once its session was released: the request is still served, but creates no affinity. */
  createsAffinity: boolean
  /** A key that is equal for all requests with the same candidates. */
  kind: string
}

/** The results of one walk of the queue for requests of one kind. */
interface QueueWalkResult {
  readonly candidates: readonly MemberLoad[]
  /**
   * The affinities of requests that cannot start, as member ids; undefined: no affinity. Another request with the same
   * affinity cannot start either, since loads only rise during a walk.
   */
  readonly stuckAt: Set<string | undefined>
}

interface MemberState extends Member {
  inFlight: number
  readonly sessions: number
  lastStart: number
}

export class Scheduler {
  readonly #options: SchedulerOptions
  readonly #members = new Map<string, MemberState>()
  /** Waiting requests in order of arrival. */
  readonly #waiting = new Map<string, WaitingRequest>()
  /** The member of each running request. */
  readonly #running = new Map<string, string>()
  /**
   * The member that each session has affinity to, the most recently active session last. An entry outlives its member,
   * so that a worker that reconnects keeps its sessions.
   */
  readonly #homes = new Map<string, string>()
  readonly #sessionsAt = new Map<string, number>()
  #paused = false
  #moves = 0
  /** The number of requests started so far. */
  #starts = 0

  constructor(options: SchedulerOptions) {
    this.#options = options
  }

  /**
   * Adds a member.
   * @throws RangeError if the id exists, or if its limit is below 1.
   * @returns requests that start now
   */
  addMember(member: Member): Assignment[] {
    if (this.#members.has(member.id)) throw new RangeError(`member ${member.id} exists`)
    this.#members.set(member.id, this.#getState(member, { inFlight: 0, lastStart: 0 }))
    return this.#assignWaiting()
  }

  /**
   * Applies a change of a member; running requests continue.
   * @returns requests that start now; none if the member is unknown
   */
  updateMember(memberId: string, change: Partial<Omit<Member, 'id'>>): Assignment[] {
    const member = this.#members.get(memberId)
    if (member === undefined) return []
    this.#members.set(memberId, this.#getState({ ...member, ...change }, member))
    return this.#assignWaiting()
  }

  /**
   * Removes a member and the requests that it was serving.
   * @returns those requests, and waiting ones that start at another member now
   */
  removeMember(memberId: string): { lost: string[]; assigned: Assignment[] } {
    if (!this.#members.delete(memberId)) return { lost: [], assigned: [] }
    const lost = [...this.#running]
      .filter(([, servedBy]) => servedBy === memberId)
      .map(([requestId]) => requestId)
    for (const requestId of lost) this.#running.delete(requestId)
    return { lost, assigned: this.#assignWaiting() }
  }

  /** Returns whether a member that is not in `requirements.avoid` could serve such a request, now or later. */
  hasAlternative(requirements: PlacementRequirements): boolean {
    return listCandidates(this.#members.values(), requirements).some(
      ({ id }) => !requirements.avoid?.includes(id),
    )
  }

  isEjected(memberId: string): boolean {
    return this.#members.get(memberId)?.ejected ?? false
  }

  /** The number of healthy members, ejected ones included. */
  get healthyCount(): number {
    return this.#members.values().reduce((sum, { healthy }) => sum + Number(healthy), 0)
  }

  /** Returns the number of requests in flight at the member; 0 if the member is unknown. */
  countInFlight(memberId: string): number {
    return this.#members.get(memberId)?.inFlight ?? 0
  }

  /** Assigns the request to a member, or queues it. @throws RangeError if the request is already waiting or running */
  submit(request: QueuedRequest, nowMs: number): SubmissionOutcome {
    if (this.#waiting.has(request.requestId) || this.#running.has(request.requestId)) {
      throw new RangeError(`request ${request.requestId} was submitted twice`)
    }
    const candidates = this.#paused ? [] : listCandidates(this.#members.values(), request)
    const member = chooseMember(candidates, this.#homes.get(request.sessionId))
    if (member !== undefined) {
      this.#start(request, member, true)
      return { outcome: 'assigned', memberId: member.id }
    }
    if (this.#waiting.size >= this.#options.queueLimit) return { outcome: 'queue_full' }
    const expiresAtMs = nowMs + this.#options.waitMs
    this.#waiting.set(request.requestId, {
      ...request,
      expiresAtMs,
      createsAffinity: true,
      kind: getKindKey(request),
    })
    return { outcome: 'waiting' }
  }

  /** Frees the slot of a request that has ended; a no-op if it is not running. @returns requests that start now */
  release(requestId: string): Assignment[] {
    const memberId = this.#running.get(requestId)
    if (memberId === undefined) return []
    this.#running.delete(requestId)
    this.#members.get(memberId)!.inFlight -= 1
    return this.#assignWaiting()
  }

  /** Removes a request from the queue. @returns whether it was waiting */
  withdraw(requestId: string): boolean {
    return this.#waiting.delete(requestId)
  }

  /**
   * Removes and returns the requests that no member could serve for `waitMs`. Restarts the wait of requests whose
   * members are merely busy, and of all requests during a pause, since these waits are unlimited. To be called about
   * every second while requests wait.
   */
  expire(nowMs: number): string[] {
    const expired: string[] = []
    const kinds = new Map<string, QueueWalkResult>()
    for (const request of this.#waiting.values()) {
      if (this.#paused || this.#getWalkResult(request, kinds).candidates.length > 0) {
        request.expiresAtMs = nowMs + this.#options.waitMs
      } else if (request.expiresAtMs <= nowMs) {
        expired.push(request.requestId)
        this.#waiting.delete(request.requestId)
      }
    }
    return expired
  }

  /** Discards the affinity of a session that has ended. Its running and waiting requests are unaffected. */
  releaseSession(sessionId: string): void {
    this.#setHome(sessionId, undefined)
    for (const request of this.#waiting.values()) {
      if (request.sessionId === sessionId) request.createsAffinity = false
    }
  }

  /** Queues new requests while running ones finish, for instance during a weight update. */
  pause(): void {
    this.#paused = true
  }

  /** Ends the pause. @returns requests that start now */
  resume(): Assignment[] {
    this.#paused = false
    return this.#assignWaiting()
  }

  getStats(): SchedulerStats {
    return {
      members: [...this.#members.values()].map((member) => ({ ...member })),
      waiting: this.#waiting.size,
      sessions: this.#homes.size,
      moves: this.#moves,
      paused: this.#paused,
    }
  }

  /**
   * Assigns waiting requests. One walk suffices: a request that starts only raises loads, which lets no earlier one
   * start.
   */
  #assignWaiting(): Assignment[] {
    const assignments: Assignment[] = []
    if (this.#paused) return assignments
    let freeSlots = this.#countFreeSlots()
    const kinds = new Map<string, QueueWalkResult>()
    for (const request of this.#waiting.values()) {
      if (freeSlots === 0) break
      const { candidates, stuckAt } = this.#getWalkResult(request, kinds)
      const home = this.#homes.get(request.sessionId)
      if (stuckAt.has(home)) continue
      const member = chooseMember(candidates, home)
      if (member === undefined) {
        stuckAt.add(home)
        continue
      }
      this.#waiting.delete(request.requestId)
      this.#start(request, member, request.createsAffinity)
      assignments.push({ requestId: request.requestId, memberId: member.id })
      freeSlots -= 1
    }
    return assignments
  }

  #countFreeSlots(): number {
    let free = 0
    for (const member of this.#members.values()) {
      if (hasFreeSlot(member)) free += member.maxConcurrency - member.inFlight
    }
    return free
  }

  /**
   * Returns the walk's results for requests of the same kind, computed for the first of them.
   * @param kinds the results of this walk by kind
   */
  #getWalkResult(request: WaitingRequest, kinds: Map<string, QueueWalkResult>): QueueWalkResult {
    let kind = kinds.get(request.kind)
    if (kind === undefined) {
      kind = { candidates: listCandidates(this.#members.values(), request), stuckAt: new Set() }
      kinds.set(request.kind, kind)
    }
    return kind
  }

  #start(request: QueuedRequest, member: MemberLoad, createsAffinity: boolean): void {
    const state = this.#members.get(member.id)!
    state.inFlight += 1
    state.lastStart = ++this.#starts
    this.#running.set(request.requestId, member.id)
    if (!createsAffinity) return
    const home = this.#homes.get(request.sessionId)
    if (home !== undefined && home !== member.id) this.#moves += 1
    this.#setHome(request.sessionId, member.id)
  }

  #setHome(sessionId: string, memberId: string | undefined): void {
    const before = this.#homes.get(sessionId)
    if (before !== undefined) this.#countSession(before, -1)
    this.#homes.delete(sessionId)
    if (memberId === undefined) return
    this.#homes.set(sessionId, memberId)
    this.#countSession(memberId, 1)
    if (this.#homes.size > MAX_HOMES) this.#setHome(this.#homes.keys().next().value!, undefined)
  }

  #countSession(memberId: string, change: 1 | -1): void {
    const count = (this.#sessionsAt.get(memberId) ?? 0) + change
    if (count === 0) this.#sessionsAt.delete(memberId)
    else this.#sessionsAt.set(memberId, count)
  }

  #getState(
    member: Member,
    { inFlight, lastStart }: Pick<MemberState, 'inFlight' | 'lastStart'>,
  ): MemberState {
    const { id, maxConcurrency, healthy, unavailable, draining, ejected } = member
    const { models, weightVersion, lacks, busyElsewhere } = member
    if (!(maxConcurrency >= 1)) throw new RangeError(`maxConcurrency of ${id} must be at least 1`)
    const sessionsAt = this.#sessionsAt
    return {
      id,
      maxConcurrency,
      healthy,
      unavailable,
      draining,
      ejected,
      models,
      weightVersion,
      lacks,
      busyElsewhere,
      inFlight,
      lastStart,
      get sessions() {
        return sessionsAt.get(id) ?? 0
      },
    }
  }
}

function getKindKey({ model, needs, mustServe, minWeightVersion, avoid }: QueuedRequest): string {
  return JSON.stringify([model, needs, mustServe, minWeightVersion, avoid])
}
