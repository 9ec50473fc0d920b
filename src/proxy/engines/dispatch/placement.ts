/**
 * Where a call goes: pure rules over the members' loads, the same for engines and workers. The scheduler keeps the
 * state, these functions judge it.
 */
import type { GenerationRequest } from '../../../protocol/canonical/request.ts'
import type { Unavailable } from '../port/engine-client.ts'

/**
 * What a call may need that not every member can do: to serve a text completion, to sample after given token ids, or
 * after ids that stand for images.
 */
export type Ability = 'completion' | 'token_ids' | 'images'

/** What the rules need to know of an engine or worker. */
export interface Member {
  readonly id: string
  /** Calls that it may serve at once; a positive integer. */
  readonly maxConcurrency: number
  readonly healthy: boolean
  /** It gets nothing new and is waited for, as one that is full; calls that it has are its own to finish. */
  readonly unavailable?: Unavailable | undefined
  /** It finishes what it has and takes nothing new. */
  readonly draining: boolean
  /** Its last requests failed: it gets new ones only if no other member could serve them. */
  readonly ejected?: boolean | undefined
  /** The models it serves; empty means that it did not tell, and that it is asked for any. */
  readonly models: readonly string[]
  /** Absent: nothing. */
  readonly lacks?: readonly Ability[] | undefined
  /** Calls that it serves for others, as it last said. They count when loads are compared; whether it is full is its own to say. */
  readonly busyElsewhere?: number | undefined
}

export interface MemberLoad extends Member {
  /** Calls that it serves now. */
  readonly inFlight: number
  /** Sessions that stick to it, whether they have a call in flight or not. */
  readonly sessions: number
  /** Ordinal of the request that it started last; 0: it has started none. */
  readonly lastStart: number
}

export interface Requirements {
  readonly model?: string | undefined
  readonly needs?: Ability | undefined
  /** Only members that list the model: nobody is asked for one that nobody is known to serve. */
  readonly mustServe?: boolean | undefined
  /** Members that failed this call: they get it again only if nobody else could ever serve it. */
  readonly avoid?: readonly string[] | undefined
}

const CLEARLY_MORE_CALLS = 4
const CLEARLY_MORE_TIMES = 2
const ROOMY_LOAD = 0.75

function countRequests({ inFlight, busyElsewhere = 0 }: MemberLoad): number {
  return inFlight + busyElsewhere
}

/** Its calls relative to the limit: 0 is idle, 1 is full. */
function computeLoad(member: MemberLoad): number {
  return countRequests(member) / member.maxConcurrency
}

export function hasRoom(member: MemberLoad): boolean {
  return member.unavailable === undefined && member.inFlight < member.maxConcurrency
}

/**
 * Whether a session should leave `home` for `other`, which costs it its prefix cache: `home` is full while `other`
 * is at most three quarters full, or `home` is at least twice as loaded and has at least four calls more. Between two
 * nearly full members a call waits for its own, so that saturation does not shuffle every session.
 */
export function isClearlyMoreLoaded(home: MemberLoad, other: MemberLoad): boolean {
  if (!hasRoom(home) && computeLoad(other) <= ROOMY_LOAD) return true
  return (
    computeLoad(home) >= CLEARLY_MORE_TIMES * computeLoad(other) &&
    countRequests(home) - countRequests(other) >= CLEARLY_MORE_CALLS
  )
}

/**
 * Returns the member with the lowest load; among equals the one with fewer sessions, whose agents will be back; then the
 * one that has started no request for longest, so that sessions that follow each other are shared out; then the older.
 */
export function leastLoaded(members: readonly MemberLoad[]): MemberLoad | undefined {
  let best = members[0]
  for (const member of members) {
    if (best === undefined || isLessLoaded(member, best)) best = member
  }
  return best
}

function isLessLoaded(member: MemberLoad, than: MemberLoad): boolean {
  const difference = computeLoad(member) - computeLoad(than) || member.sessions - than.sessions
  return (difference || member.lastStart - than.lastStart) < 0
}

/**
 * The members that could serve the call, now or once they have room. A model that nobody lists is everybody's: an
 * engine refuses it in its own words, or has loaded it since it was last asked. So is what nobody can do.
 */
export function candidatesFor(members: Iterable<MemberLoad>, requirements: Requirements): MemberLoad[] {
  const all = [...members]
  const serving = all.filter((member) => serves(member, requirements))
  const asked = serving.length > 0 || requirements.mustServe ? serving : all
  const able = asked.filter((member) => member.healthy && !member.draining)
  const awake = able.filter((member) => member.unavailable === undefined)
  const left = awake.length > 0 ? awake : able
  const untried = left.filter((member) => !requirements.avoid?.includes(member.id))
  const possible = untried.length > 0 ? untried : left
  const inRotation = possible.filter((member) => !member.ejected)
  return inRotation.length > 0 ? inRotation : possible
}

/**
 * What a call fails with whose policy nobody lists, though there is somebody who serves others.
 * @param members those that there are
 */
export function createUnlistedPolicyError(
  { model, mustServe }: Requirements,
  members: readonly Pick<Member, 'healthy' | 'models'>[],
): { code: 'policy_not_served'; message: string } | undefined {
  const listed = new Set(members.flatMap(({ healthy, models }) => (healthy ? models : [])))
  if (!mustServe || model === undefined || listed.size === 0 || listed.has(model)) return undefined
  const names = [...listed].sort().slice(0, MAX_NAMES).join(', ')
  const more = listed.size > MAX_NAMES ? ` and ${listed.size - MAX_NAMES} more` : ''
  return {
    code: 'policy_not_served',
    message: `no engine here lists the policy ${model}; they list ${names}${more}`,
  }
}

/** In an error; an engine may list hundreds of adapters. */
const MAX_NAMES = 8

function serves(member: Member, { model, needs, mustServe }: Requirements): boolean {
  if (needs !== undefined && member.lacks?.includes(needs)) return false
  if (mustServe) return model !== undefined && member.models.includes(model)
  return model === undefined || member.models.length === 0 || member.models.includes(model)
}

/** What a request needs of the member that serves it, beyond what each can do. */
export function getRequiredAbility(request: GenerationRequest): Ability | undefined {
  if (request.kind === 'completion') return 'completion'
  if (request.images !== undefined) return 'images'
  return request.promptTokenIds ? 'token_ids' : undefined
}

/** The member that should take the call now; undefined: it has to wait. `homeId` is where the session sticks. */
export function chooseMember(
  candidates: readonly MemberLoad[],
  homeId: string | undefined,
): MemberLoad | undefined {
  const least = leastLoaded(candidates)
  if (least === undefined) return undefined
  const home = candidates.find((member) => member.id === homeId)
  const target = home !== undefined && !isClearlyMoreLoaded(home, least) ? home : least
  return hasRoom(target) ? target : undefined
}
