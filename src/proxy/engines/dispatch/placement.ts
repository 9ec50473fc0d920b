/**
 * Placement of requests: pure functions of the members' loads, the same for engines and workers. The scheduler stores
 * the state.
 */
import type { GenerationRequest } from '../../../protocol/canonical/request.ts'
import type { UnavailableReason } from '../port/engine-client.ts'

/**
 * A capability that a request may require and that some members lack: to serve a text completion, to sample after given
 * token ids, or after ids with images.
 */
export type MemberCapability = 'completion' | 'token_ids' | 'images'

/** The properties of an engine or worker that placement depends on. */
export interface Member {
  readonly id: string
  /** The number of requests that it can serve concurrently; a positive integer. */
  readonly maxConcurrency: number
  readonly healthy: boolean
  /**
   * Set while the member receives no new requests because it is asleep or paused. Requests wait for it as for a full
   * member; running ones are not interrupted.
   */
  readonly unavailable?: UnavailableReason | undefined
  /** Whether the member finishes its running requests and receives no new ones. */
  readonly draining: boolean
  /** Whether its last requests failed, so that it receives new ones only if no other member could serve them. */
  readonly ejected?: boolean | undefined
  /** The models that it serves; empty: it reports none, and receives requests for any model. */
  readonly models: readonly string[]
  /** The version of its weights as last reported; absent: unknown. */
  readonly weightVersion?: string | undefined
  /** The capabilities that it lacks; absent: none. */
  readonly lacks?: readonly MemberCapability[] | undefined
  /**
   * The number of requests that it serves for other proxies, as last reported. They count in comparisons of loads; the
   * member itself enforces its limit over all proxies.
   */
  readonly busyElsewhere?: number | undefined
}

/** A member with its current load. */
export interface MemberLoad extends Member {
  /** The number of requests in flight. */
  readonly inFlight: number
  /** The number of sessions with affinity to it, whether they have a request in flight or not. */
  readonly sessions: number
  /** The ordinal of the request that the member started last; 0 if it has started none. */
  readonly lastStart: number
}

/** The requirements of a request on its member. */
export interface PlacementRequirements {
  readonly model?: string | undefined
  readonly needs?: MemberCapability | undefined
  /** Whether members that do not list the model are excluded, even if no member lists it. */
  readonly mustServe?: boolean | undefined
  /** Excludes members whose weights are known to be older. */
  readonly minWeightVersion?: string | undefined
  /** Members that failed this request: they receive it again only if no other member could ever serve it. */
  readonly avoid?: readonly string[] | undefined
}

const CLEARLY_MORE_REQUESTS = 4
const CLEARLY_MORE_TIMES = 2
const MAX_TARGET_LOAD = 0.75

function countRequests({ inFlight, busyElsewhere = 0 }: MemberLoad): number {
  return inFlight + busyElsewhere
}

/** Returns the load relative to the limit: 0 is idle, 1 is full. */
function computeLoad(member: MemberLoad): number {
  return countRequests(member) / member.maxConcurrency
}

export function hasFreeSlot(member: MemberLoad): boolean {
  return member.unavailable === undefined && member.inFlight < member.maxConcurrency
}

/**
 * Returns whether a session should leave `home` for `other`, which costs it its prefix cache: `home` is full while
 * `other` is at most three quarters full, or `home` is at least twice as loaded and has at least four requests more. If
 * both are nearly full, a request waits for its home, so that saturation does not move every session.
 */
export function isClearlyMoreLoaded(home: MemberLoad, other: MemberLoad): boolean {
  if (!hasFreeSlot(home) && computeLoad(other) <= MAX_TARGET_LOAD) return true
  return (
    computeLoad(home) >= CLEARLY_MORE_TIMES * computeLoad(other) &&
    countRequests(home) - countRequests(other) >= CLEARLY_MORE_REQUESTS
  )
}

/**
 * Returns the member with the lowest load; among equals the one with fewer sessions, whose agents will send further
 * requests; then the one that has started no request for longest, so that consecutive sessions are distributed; then
 * the one that was added earlier.
 */
export function findLeastLoaded(members: readonly MemberLoad[]): MemberLoad | undefined {
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
 * Returns the members that could serve the request, now or once they have a free slot. All members qualify for a model
 * that no member lists: an engine rejects it with its own message, or has loaded it since its last check. The same
 * applies to a capability that all members lack.
 */
export function listCandidates(
  members: Iterable<MemberLoad>,
  requirements: PlacementRequirements,
): MemberLoad[] {
  const all = [...members]
  const serving = all.filter((member) => serves(member, requirements))
  const candidates = serving.length > 0 || requirements.mustServe ? serving : all
  const { minWeightVersion } = requirements
  const able = candidates.filter(
    ({ healthy, draining, weightVersion }) =>
      healthy && !draining && !isOlderVersion(weightVersion, minWeightVersion),
  )
  const awake = able.filter((member) => member.unavailable === undefined)
  const left = awake.length > 0 ? awake : able
  const untried = left.filter((member) => !requirements.avoid?.includes(member.id))
  const possible = untried.length > 0 ? untried : left
  const inRotation = possible.filter((member) => !member.ejected)
  return inRotation.length > 0 ? inRotation : possible
}

/**
 * Returns the error for a request whose model no member serves while healthy members serve other models.
 * @param members all members
 */
export function createUnlistedPolicyError(
  { model, mustServe }: PlacementRequirements,
  members: readonly Pick<Member, 'healthy' | 'models'>[],
): { code: 'policy_not_served'; message: string } | undefined {
  const listed = new Set(members.flatMap(({ healthy, models }) => (healthy ? models : [])))
  if (!mustServe || model === undefined || listed.size === 0 || listed.has(model)) return undefined
  const names = [...listed].sort().slice(0, MAX_NAMES).join(', ')
  const more = listed.size > MAX_NAMES ? ` and ${listed.size - MAX_NAMES} more` : ''
  return {
    code: 'policy_not_served',
    message: `no engine lists the policy ${model}; they list ${names}${more}`,
  }
}

/** The largest number of names in the error message: an engine may list hundreds of adapters. */
const MAX_NAMES = 8

/** Returns whether a version is older than another one; false unless both are numbers. */
export function isOlderVersion(version: string | undefined, than: string | undefined): boolean {
  return Number(version || Number.NaN) < Number(than || Number.NaN)
}

function serves(member: Member, { model, needs, mustServe }: PlacementRequirements): boolean {
  if (needs !== undefined && member.lacks?.includes(needs)) return false
  if (mustServe) return model !== undefined && member.models.includes(model)
  return model === undefined || member.models.length === 0 || member.models.includes(model)
}

/** Returns the capability that a request requires of its member. */
export function getRequiredCapability(request: GenerationRequest): MemberCapability | undefined {
  if (request.kind === 'completion') return 'completion'
  if (request.images !== undefined) return 'images'
  return request.promptTokenIds ? 'token_ids' : undefined
}

/**
 * Returns the member that should serve the request now; undefined: it has to wait. `homeId` is the member that the
 * session has affinity to.
 */
export function chooseMember(
  candidates: readonly MemberLoad[],
  homeId: string | undefined,
): MemberLoad | undefined {
  const least = findLeastLoaded(candidates)
  if (least === undefined) return undefined
  const home = candidates.find((member) => member.id === homeId)
  const target = home !== undefined && !isClearlyMoreLoaded(home, least) ? home : least
  return hasFreeSlot(target) ? target : undefined
}
