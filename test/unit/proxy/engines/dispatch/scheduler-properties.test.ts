import fc from 'fast-check'
import t from 'tap'
import {
  findLeastLoaded,
  hasFreeSlot,
  isClearlyMoreLoaded,
  listCandidates,
  type MemberLoad,
} from '../../../../../src/proxy/engines/dispatch/placement.ts'
import {
  type Assignment,
  type QueuedRequest,
  Scheduler,
} from '../../../../../src/proxy/engines/dispatch/scheduler.ts'
import { limitRuns } from '../../../../helpers/tier.ts'

const QUEUE_LIMIT = 6
const WAIT_MS = 100

/** A straightforward model of the scheduler's state, against which its actions are checked. */
class Model {
  readonly scheduler = new Scheduler({ queueLimit: QUEUE_LIMIT, waitMs: WAIT_MS })
  readonly waiting = new Map<string, QueuedRequest>()
  readonly running = new Map<string, { request: QueuedRequest; memberId: string }>()
  readonly homes = new Map<string, string>()
  readonly released = new Set<string>()
  readonly finished = new Set<string>()
  nowMs = 0
  #requestCount = 0

  submit(sessionId: string, model: string | undefined, avoid: string[]): void {
    this.#requestCount += 1
    const request = { requestId: `request ${this.#requestCount}`, sessionId, model, avoid }
    const expected = this.#expectedMember(request)
    const submission = this.scheduler.submit(request, this.nowMs)
    const memberId = submission.outcome === 'assigned' ? submission.memberId : undefined
    if (memberId !== expected) throw new Error(`${request.requestId} went to ${memberId}, not to ${expected}`)
    if (memberId !== undefined) this.#run(request, memberId)
    else if (submission.outcome === 'waiting') this.waiting.set(request.requestId, request)
    else if (this.waiting.size < QUEUE_LIMIT) throw new Error('rejected although the queue has room')
  }

  /** Applies the assignments of a change, and checks that no request was overtaken. */
  accept(assignments: Assignment[]): void {
    for (const { requestId, memberId } of assignments) {
      const request = this.waiting.get(requestId)
      if (request === undefined) throw new Error(`${requestId} was assigned without waiting`)
      for (const older of this.waiting.values()) {
        if (older === request) break
        const isAlike = older.model === request.model && `${older.avoid}` === `${request.avoid}`
        if (isAlike && !this.homes.has(older.sessionId))
          throw new Error(`${requestId} overtook ${older.requestId}`)
      }
      this.waiting.delete(requestId)
      this.#run(request, memberId, !this.released.has(requestId))
    }
  }

  finish(index: number): void {
    const requestId = [...this.running.keys()][index % Math.max(1, this.running.size)]
    if (requestId === undefined) return
    this.running.delete(requestId)
    this.finished.add(requestId)
    this.accept(this.scheduler.release(requestId))
    if (this.scheduler.release(requestId).length > 0) throw new Error('a second release freed a slot')
  }

  withdraw(index: number): void {
    const requestId = [...this.waiting.keys()][index % Math.max(1, this.waiting.size)]
    if (requestId === undefined) return
    this.waiting.delete(requestId)
    if (!this.scheduler.withdraw(requestId)) throw new Error('a waiting request could not be withdrawn')
  }

  remove(memberId: string): void {
    const expected = [...this.running]
      .filter(([, { memberId: other }]) => other === memberId)
      .map(([requestId]) => requestId)
    const { lost, assigned } = this.scheduler.removeMember(memberId)
    if (`${lost}` !== `${expected}`) throw new Error(`lost ${lost}, expected ${expected}`)
    for (const requestId of lost) this.running.delete(requestId)
    this.accept(assigned)
  }

  releaseSession(sessionId: string): void {
    this.scheduler.releaseSession(sessionId)
    this.homes.delete(sessionId)
    for (const request of this.waiting.values())
      if (request.sessionId === sessionId) this.released.add(request.requestId)
  }

  expire(byMs: number): void {
    this.nowMs += byMs
    const paused = this.scheduler.getStats().paused
    for (const requestId of this.scheduler.expire(this.nowMs)) {
      const request = this.waiting.get(requestId)!
      if (paused || listCandidates(this.members(), request).length > 0)
        throw new Error('expired although it could be served')
      this.waiting.delete(requestId)
    }
  }

  members(): MemberLoad[] {
    return this.scheduler.getStats().members
  }

  checkInvariants(): void {
    const { members, waiting, sessions, paused } = this.scheduler.getStats()
    if (waiting !== this.waiting.size) throw new Error(`${waiting} wait, expected ${this.waiting.size}`)
    if (sessions !== this.homes.size) throw new Error(`${sessions} sessions, expected ${this.homes.size}`)
    for (const member of members) {
      const served = [...this.running.values()].filter(({ memberId }) => memberId === member.id).length
      if (served !== member.inFlight)
        throw new Error(`${member.id} counts ${member.inFlight}, serves ${served}`)
    }
    for (const request of paused ? [] : this.waiting.values()) {
      const candidates = listCandidates(members, request)
      if (candidates.length > 0 && candidates.every(hasFreeSlot))
        throw new Error(`${request.requestId} waits although all its candidates have free slots`)
    }
  }

  #run(request: QueuedRequest, memberId: string, hasAffinity = true): void {
    if (this.running.has(request.requestId) || this.finished.has(request.requestId))
      throw new Error('assigned twice')
    const member = this.members().find(({ id }) => id === memberId)
    if (member === undefined || !member.healthy || member.draining)
      throw new Error(`${memberId} cannot serve`)
    if (member.inFlight > member.maxConcurrency) throw new Error(`${memberId} is above its limit`)
    this.running.set(request.requestId, { request, memberId })
    if (hasAffinity) this.homes.set(request.sessionId, memberId)
  }

  /**
   * Returns the session's member unless it is clearly more loaded, else the least loaded one; `undefined`
   * while the chosen one is full, or during a pause.
   */
  #expectedMember(request: QueuedRequest): string | undefined {
    const { members, paused } = this.scheduler.getStats()
    const candidates = listCandidates(members, request)
    const least = findLeastLoaded(candidates)
    if (paused || least === undefined) return undefined
    const home = candidates.find(({ id }) => id === this.homes.get(request.sessionId))
    const target = home !== undefined && !isClearlyMoreLoaded(home, least) ? home : least
    return hasFreeSlot(target) ? target.id : undefined
  }
}

const memberId = fc.constantFrom('a', 'b', 'c')
const sessionId = fc.constantFrom('s1', 's2', 's3', 's4', 's5')
const limit = fc.integer({ min: 1, max: 4 })
const models = fc.subarray(['qwen', 'llama'])

const operation = fc.oneof(
  {
    weight: 6,
    arbitrary: fc
      .tuple(
        sessionId,
        fc.option(fc.constantFrom('qwen', 'llama', 'gpt'), { nil: undefined }),
        fc.subarray(['a', 'b']),
      )
      .map(
        ([session, model, avoid]) =>
          (subject: Model) =>
            subject.submit(session, model, avoid),
      ),
  },
  { weight: 5, arbitrary: fc.nat(50).map((index) => (subject: Model) => subject.finish(index)) },
  {
    weight: 3,
    arbitrary: fc.tuple(memberId, limit, models).map(([id, maxConcurrency, served]) => (subject: Model) => {
      if (subject.members().some((member) => member.id === id)) return
      subject.accept(
        subject.scheduler.addMember({ id, maxConcurrency, models: served, healthy: true, draining: false }),
      )
    }),
  },
  {
    weight: 2,
    arbitrary: fc.tuple(memberId, limit, fc.boolean(), fc.boolean()).map(
      ([id, maxConcurrency, healthy, draining]) =>
        (subject: Model) =>
          subject.accept(subject.scheduler.updateMember(id, { maxConcurrency, healthy, draining })),
    ),
  },
  memberId.map((id) => (subject: Model) => subject.remove(id)),
  sessionId.map((id) => (subject: Model) => subject.releaseSession(id)),
  fc.nat(50).map((index) => (subject: Model) => subject.withdraw(index)),
  fc.nat(WAIT_MS).map((byMs) => (subject: Model) => subject.expire(byMs)),
  fc.constant((subject: Model) => subject.scheduler.pause()),
  fc.constant((subject: Model) => subject.accept(subject.scheduler.resume())),
)

t.test('for any events, limits and order hold, and no request is dropped or served twice', (t) => {
  fc.assert(
    fc.property(fc.array(operation, { maxLength: 120, size: 'max' }), (operations) => {
      const subject = new Model()
      for (const run of operations) {
        run(subject)
        subject.checkInvariants()
      }
    }),
    { numRuns: limitRuns(500) },
  )
  t.end()
})

t.test('after any events, every waiting request is served once a member is available', (t) => {
  fc.assert(
    fc.property(fc.array(operation, { maxLength: 80, size: 'max' }), (operations) => {
      const subject = new Model()
      for (const run of operations) run(subject)
      subject.accept(subject.scheduler.resume())
      for (const { id } of subject.members()) subject.remove(id)
      subject.accept(
        subject.scheduler.addMember({
          id: 'd',
          maxConcurrency: 1,
          models: [],
          healthy: true,
          draining: false,
        }),
      )
      while (subject.running.size > 0) subject.finish(0)
      return subject.waiting.size === 0
    }),
    { numRuns: limitRuns(300) },
  )
  t.end()
})

t.test("when all sessions are released and all requests finished, the scheduler's state is empty", (t) => {
  fc.assert(
    fc.property(fc.array(operation, { maxLength: 80, size: 'max' }), (operations) => {
      const subject = new Model()
      for (const run of operations) run(subject)
      for (const session of ['s1', 's2', 's3', 's4', 's5']) subject.releaseSession(session)
      while (subject.waiting.size > 0) subject.withdraw(0)
      while (subject.running.size > 0) subject.finish(0)
      const { members, waiting, sessions } = subject.scheduler.getStats()
      return (
        waiting === 0 && sessions === 0 && members.every((one) => one.inFlight === 0 && one.sessions === 0)
      )
    }),
    { numRuns: limitRuns(300) },
  )
  t.end()
})
