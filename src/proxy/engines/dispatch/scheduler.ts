/**
 * Decides which engine or worker serves which call: a state machine without timers, promises or I/O. Time comes in
 * as a parameter, and what has to happen comes out as return values; `dispatcher.ts` is the shell that acts on them.
 *
 * Calls that cannot be served at once wait in one bounded queue. Every change that may free a slot walks the queue in
 * order of arrival, so that among calls that could use the slot the oldest gets it. What holds for one call holds for all
 * of its kind, and is worked out once a walk: thousands may wait for hundreds of members.
 */
import {
  candidatesFor,
  chooseMember,
  hasRoom,
  type Member,
  type MemberLoad,
  type Requirements,
} from './placement.ts'

export interface SchedulerOptions {
  /** Calls that may wait; one more is turned away. */
  queueLimit: number
  /** How long a call waits while no member could serve it. A member that is only busy is waited for longer. */
  waitMs: number
}

export interface QueuedRequest extends Requirements {
  callId: string
  sessionId: string
}

/** The call has got a slot of the member, until `release(callId)`. */
export interface Assignment {
  callId: string
  memberId: string
}

export type Submission =
  | { outcome: 'assigned'; memberId: string }
  | { outcome: 'waiting' }
  | { outcome: 'queue_full' }

export interface SchedulerStats {
  members: MemberLoad[]
  waiting: number
  /** Sessions that stick to a member. */
  sessions: number
  /** How often a session went to another member than the one that it stuck to. */
  moves: number
  paused: boolean
}

/**
 * Sessions whose member is remembered; with one more, the one that called longest ago is forgotten. A worker may not
 * hear that a session has ended, and an agent may leave without a word.
 */
const MAX_HOMES = 100_000

interface WaitingRequest extends QueuedRequest {
  /** When it gives up, unless a member that could serve it turns up before. */
  giveUpAtMs: number
  /** False once its session was released: the call is still served, but the session is not remembered again. */
  sticky: boolean
  /** The same for all calls that could go to the same members. */
  kind: string
}

/** What one walk of the queue has found out about calls of one kind. */
interface Kind {
  readonly candidates: readonly MemberLoad[]
  /** Where sessions stick whose calls cannot start: for others that stick there, nothing changes while loads only rise. */
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
  /** In order of arrival. */
  readonly #waiting = new Map<string, WaitingRequest>()
  /** Which member serves each running call. */
  readonly #running = new Map<string, string>()
  /**
   * Where each session sticks, the one that called last at the end. Outlives the member, so that a worker that comes
   * back finds its sessions again.
   */
  readonly #homes = new Map<string, string>()
  readonly #sessionsAt = new Map<string, number>()
  #paused = false
  #moves = 0
  /** Requests started so far. */
  #starts = 0

  constructor(options: SchedulerOptions) {
    this.#options = options
  }

  /** @throws RangeError when a member with this id is there, or its limit is below 1. @returns calls that start now */
  addMember(member: Member): Assignment[] {
    if (this.#members.has(member.id)) throw new RangeError(`member ${member.id} exists`)
    this.#members.set(member.id, this.#getState(member, { inFlight: 0, lastStart: 0 }))
    return this.#assignWaiting()
  }

  /** Changes what is given. Running calls go on whatever changes. @returns calls that start now; none if unknown */
  updateMember(memberId: string, change: Partial<Omit<Member, 'id'>>): Assignment[] {
    const member = this.#members.get(memberId)
    if (member === undefined) return []
    this.#members.set(memberId, this.#getState({ ...member, ...change }, member))
    return this.#assignWaiting()
  }

  /**
   * Forgets the member and the calls that it was serving.
   * @returns those calls, and waiting ones that another member takes over now
   */
  removeMember(memberId: string): { lost: string[]; assigned: Assignment[] } {
    if (!this.#members.delete(memberId)) return { lost: [], assigned: [] }
    const lost = [...this.#running].filter(([, servedBy]) => servedBy === memberId).map(([callId]) => callId)
    for (const callId of lost) this.#running.delete(callId)
    return { lost, assigned: this.#assignWaiting() }
  }

  /** Returns whether a member that is not in `requirements.avoid` could serve such a request, now or later. */
  hasUntried(requirements: Requirements): boolean {
    return candidatesFor(this.#members.values(), requirements).some(
      ({ id }) => !requirements.avoid?.includes(id),
    )
  }

  isEjected(memberId: string): boolean {
    return this.#members.get(memberId)?.ejected ?? false
  }

  /** Members that are healthy, ejected ones included. */
  get healthyCount(): number {
    return this.#members.values().reduce((sum, { healthy }) => sum + Number(healthy), 0)
  }

  /** Calls that the member serves now; 0 if there is none of this id. */
  inFlightAt(memberId: string): number {
    return this.#members.get(memberId)?.inFlight ?? 0
  }

  /** @throws RangeError when the call is already waiting or running. */
  submit(call: QueuedRequest, nowMs: number): Submission {
    if (this.#waiting.has(call.callId) || this.#running.has(call.callId)) {
      throw new RangeError(`call ${call.callId} was submitted twice`)
    }
    const candidates = this.#paused ? [] : candidatesFor(this.#members.values(), call)
    const member = chooseMember(candidates, this.#homes.get(call.sessionId))
    if (member !== undefined) {
      this.#start(call, member, true)
      return { outcome: 'assigned', memberId: member.id }
    }
    if (this.#waiting.size >= this.#options.queueLimit) return { outcome: 'queue_full' }
    const giveUpAtMs = nowMs + this.#options.waitMs
    this.#waiting.set(call.callId, { ...call, giveUpAtMs, sticky: true, kind: getKindKey(call) })
    return { outcome: 'waiting' }
  }

  /** The call has ended, well or not. Nothing happens if it is not running. @returns calls that start now */
  release(callId: string): Assignment[] {
    const memberId = this.#running.get(callId)
    if (memberId === undefined) return []
    this.#running.delete(callId)
    this.#members.get(memberId)!.inFlight -= 1
    return this.#assignWaiting()
  }

  /** Takes a call out of the queue. @returns whether it was waiting */
  withdraw(callId: string): boolean {
    return this.#waiting.delete(callId)
  }

  /**
   * Takes out of the queue, and returns, the calls that no member could serve for `waitMs`. The patience of all
   * others starts anew: a busy member or a pause is waited for as long as the agent is. To be called about every
   * second while something waits.
   */
  expire(nowMs: number): string[] {
    const expired: string[] = []
    const kinds = new Map<string, Kind>()
    for (const call of this.#waiting.values()) {
      if (this.#paused || this.#getKind(call, kinds).candidates.length > 0) {
        call.giveUpAtMs = nowMs + this.#options.waitMs
      } else if (call.giveUpAtMs <= nowMs) {
        expired.push(call.callId)
        this.#waiting.delete(call.callId)
      }
    }
    return expired
  }

  /** The session has ended: forget where it sticks. Its calls that run or wait are not touched. */
  releaseSession(sessionId: string): void {
    this.#setHome(sessionId, undefined)
    for (const call of this.#waiting.values()) {
      if (call.sessionId === sessionId) call.sticky = false
    }
  }

  /** New calls wait and running ones finish, for instance while weights are replaced. */
  pause(): void {
    this.#paused = true
  }

  /** @returns calls that start now */
  resume(): Assignment[] {
    this.#paused = false
    return this.#assignWaiting()
  }

  stats(): SchedulerStats {
    return {
      members: [...this.#members.values()].map((member) => ({ ...member })),
      waiting: this.#waiting.size,
      sessions: this.#homes.size,
      moves: this.#moves,
      paused: this.#paused,
    }
  }

  /** One walk is enough: a call that starts only raises loads, which lets no earlier call of the queue start. */
  #assignWaiting(): Assignment[] {
    const assignments: Assignment[] = []
    if (this.#paused) return assignments
    let freeSlots = this.#freeSlots()
    const kinds = new Map<string, Kind>()
    for (const call of this.#waiting.values()) {
      if (freeSlots === 0) break
      const { candidates, stuckAt } = this.#getKind(call, kinds)
      const home = this.#homes.get(call.sessionId)
      if (stuckAt.has(home)) continue
      const member = chooseMember(candidates, home)
      if (member === undefined) {
        stuckAt.add(home)
        continue
      }
      this.#waiting.delete(call.callId)
      this.#start(call, member, call.sticky)
      assignments.push({ callId: call.callId, memberId: member.id })
      freeSlots -= 1
    }
    return assignments
  }

  #freeSlots(): number {
    let free = 0
    for (const member of this.#members.values()) {
      if (hasRoom(member)) free += member.maxConcurrency - member.inFlight
    }
    return free
  }

  /** @param kinds those of this walk: the members do not change during one, but for their loads */
  #getKind(call: WaitingRequest, kinds: Map<string, Kind>): Kind {
    let kind = kinds.get(call.kind)
    if (kind === undefined) {
      kind = { candidates: candidatesFor(this.#members.values(), call), stuckAt: new Set() }
      kinds.set(call.kind, kind)
    }
    return kind
  }

  #start(call: QueuedRequest, member: MemberLoad, sticky: boolean): void {
    const state = this.#members.get(member.id)!
    state.inFlight += 1
    state.lastStart = ++this.#starts
    this.#running.set(call.callId, member.id)
    if (!sticky) return
    const home = this.#homes.get(call.sessionId)
    if (home !== undefined && home !== member.id) this.#moves += 1
    this.#setHome(call.sessionId, member.id)
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
    const { id, maxConcurrency, healthy, unavailable, draining, ejected, models, lacks, busyElsewhere } =
      member
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

function getKindKey({ model, needs, mustServe, avoid }: QueuedRequest): string {
  return JSON.stringify([model, needs, mustServe, avoid])
}
