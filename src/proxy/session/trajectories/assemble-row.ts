/**
 * Assembles one row from a chain of turns: its tokens, the turns that it trains with their spans, and its truncation.
 */
import { isCutByEngine } from '../../../protocol/canonical/completion.ts'
import type { RowImage, RowJson, RowTurn } from '../../../protocol/schema/row.ts'
import type { SessionMarks } from '../../store/port/marks.ts'
import type { Reward } from '../../store/port/turn-store.ts'
import type { AgentRole } from '../roles/agent-role.ts'
import { shiftEngineRequests } from './engine-requests.ts'
import type { RowLayout } from './row-details.ts'
import { moveBeginAfterImage, moveEndBeforeImage, selectImages } from './row-images.ts'
import type { TurnNode } from './turn-tree.ts'

/** The options of a request for rows. */
export interface TrajectoryOptions {
  /**
   * The maximum length of the prompt, of which the last tokens are retained, as in verl's left truncation. Default: no
   * limit.
   */
  promptLength?: number | undefined
  /** The maximum length of the response, of which the first tokens are retained. Default: no limit. */
  responseLength?: number | undefined
  /**
   * The selected rows. `longest`: the row with the longest response before truncation, the first of several. `last`:
   * the row whose last turn is the latest. Default: `all`.
   */
  select?: 'all' | 'longest' | 'last'
  /** Whether the selected rows are split into one row per turn, with the turn's complete prompt. */
  perTurn?: boolean
  /**
   * The policy whose turns are trained; only rows that train one of them are returned. Default: turns of all policies.
   */
  policy?: string
  /** Whether to mask the tokens that were sampled by older weights than the newest ones in the row. Default: no. */
  maskStaleTokens?: boolean
}

/** A turn of a row, with the span of its completion in `response_ids`. */
export type TurnSpan = Readonly<Omit<RowTurn, 'agent_role' | 'line' | 'labels' | 'sampling'>> & {
  readonly agent_role: AgentRole
  readonly labels: readonly string[]
}

/** A row as in the trajectories API, but with typed arrays, and without the fields that the API adds. */
export interface Trajectory
  extends Readonly<Omit<RowJson, 'finished' | 'agent_role' | 'line' | 'turns' | 'labels' | keyof RowArrays>>,
    RowArrays {
  /** The agent role of the last turn that is no compaction; `compaction` if there is no such turn. */
  readonly agent_role: AgentRole
  readonly turns: readonly TurnSpan[]
  readonly labels: readonly string[]
  /** The images whose tokens are in the prompt or the response. Absent: there are none. */
  readonly images?: readonly RowImage[]
}

/** The fields of a row with one value per token. */
interface RowArrays {
  readonly prompt_ids: Int32Array
  readonly response_ids: Int32Array
  readonly response_mask: Uint8Array
  readonly response_logprobs: Float64Array
}

/** A row before its tokens are assembled. */
export interface RowPlan {
  /** The turns from first to last; each is the parent of the next one. Never empty. */
  readonly chain: readonly TurnNode[]
  readonly last: TurnNode
  /** The length of the first turn's prompt, where the response begins. */
  readonly base: number
  /** The length of the response before truncation. */
  readonly responseLength: number
  /** The images of the last turn's prompt. */
  readonly images: readonly RowImage[]
}

/**
 * Assigns each turn to the row that trains it: the one that retains most of its tokens, the first of several.
 * @param isRequested returns whether the turn may be trained
 */
export function assignTraining(
  plans: RowPlan[],
  options: TrajectoryOptions,
  isRequested: (turn: TurnNode) => boolean,
): Map<TurnNode, RowPlan> {
  const best = new Map<TurnNode, { plan: RowPlan; kept: number }>()
  for (const plan of plans) {
    for (const [position, turn] of plan.chain.entries()) {
      if (!isRequested(turn)) continue
      const { start, end } = computeSpan(position, plan, options)
      if (end - start > (best.get(turn)?.kept ?? 0)) best.set(turn, { plan, kept: end - start })
    }
  }
  return new Map([...best].map(([turn, { plan }]) => [turn, plan]))
}

/** Returns the length of the truncated response, which does not end inside an image. */
function countKeptTokens(
  plan: RowPlan,
  { responseLength = Number.POSITIVE_INFINITY }: TrajectoryOptions,
): number {
  if (responseLength >= plan.responseLength) return plan.responseLength
  return moveEndBeforeImage(plan.images, plan.base + responseLength) - plan.base
}

/** Returns the span of a turn's completion in the truncated response. */
function computeSpan(
  position: number,
  plan: RowPlan,
  options: TrajectoryOptions,
): { start: number; end: number } {
  const kept = countKeptTokens(plan, options)
  const start = plan.chain[position]!.promptLength - plan.base
  return { start: Math.min(start, kept), end: Math.min(start + getKeptLength(plan.chain, position), kept) }
}

/** Returns the number of a turn's sampled tokens that are in the row: the next prompt may replace the last ones. */
function getKeptLength(chain: readonly TurnNode[], position: number): number {
  const { promptLength, completionLength } = chain[position]!
  return (chain[position + 1]?.sharedLength ?? promptLength + completionLength) - promptLength
}

/** The data that all rows of a session share. */
interface RowContext {
  readonly trainedBy: ReadonlyMap<TurnNode, RowPlan>
  readonly reward: Reward | null
  readonly marks: SessionMarks
  policyOf(turn: TurnNode): string | null
}

/** Assembles the row of a plan. */
export function assemble(
  plan: RowPlan,
  options: TrajectoryOptions,
  { trainedBy, reward, marks, policyOf }: RowContext,
): Trajectory {
  const { chain, last, base, images } = plan
  const tokens = last.tokens.read(base + plan.responseLength)
  const kept = countKeptTokens(plan, options)
  const promptStart = moveBeginAfterImage(images, Math.max(0, base - (options.promptLength ?? base)))
  const mask = new Uint8Array(kept)
  const logprobs = new Float64Array(kept)
  const turns = chain.map((turn, position): TurnSpan => {
    const span = computeSpan(position, plan, options)
    return {
      turn_id: turn.turnId,
      index: turn.index,
      agent_role: turn.line,
      ...span,
      trained: trainedBy.get(turn) === plan,
      finish_reason: turn.finishReason,
      weight_version_start: turn.weightVersionStart,
      weight_version_end: turn.weightVersionEnd,
      policy: policyOf(turn),
      reward: reward?.turns?.[turn.index] ?? null,
      labels: marks.turns[turn.index]?.labels ?? [],
      ...(turn.engineRequests && { engine_requests: shiftEngineRequests(turn.engineRequests, span) }),
    }
  })
  const agentRole = getAgentRole(chain)
  turns.forEach(({ start, end, trained }, position) => {
    if (!trained) return
    mask.fill(1, start, end)
    logprobs.set(chain[position]!.completionLogprobs.subarray(0, end - start), start)
  })
  const keptTurns = turns.filter(({ start, end }) => end > start)
  const versions = computeVersionRange(keptTurns)
  if (options.maskStaleTokens)
    for (const [start, end] of findStaleSpans(keptTurns)) {
      mask.fill(0, start, end)
      logprobs.fill(0, start, end)
    }
  return {
    agent_role: agentRole,
    policy: turns.every(({ policy }) => policy === turns[0]!.policy) ? turns[0]!.policy : null,
    prompt_ids: tokens.subarray(promptStart, base),
    response_ids: tokens.subarray(base, base + kept),
    response_mask: mask,
    response_logprobs: logprobs,
    turns,
    num_turns: chain.length,
    finish_reason: last.finishReason,
    weight_version_min: versions.min,
    weight_version_max: versions.max,
    unversioned_turns: keptTurns.filter(isUnversioned).length,
    reward: reward?.lines?.[agentRole] ?? reward?.reward ?? null,
    reward_components: reward?.components ?? {},
    labels: marks.labels,
    exact: last.exact,
    inexact_reason: last.inexactReason,
    truncated: kept < plan.responseLength || isCutByEngine(last.finishReason),
    prompt_truncated: promptStart > 0,
    ...(last.exact && images.length > 0 && { images: selectImages(images, promptStart, base + kept) }),
  }
}

/**
 * Returns the layout of a row. It includes the turns before the row's first turn, because they also reported token data
 * of its prompt.
 */
export function createLayout({ chain, base }: RowPlan, row: Trajectory): RowLayout {
  const history: TurnNode[] = []
  for (let turn = chain[0]!.parent; turn !== undefined; turn = turn.parent) history.push(turn)
  const turns = [...history.reverse(), ...chain]
  const placed = turns.map((turn, index) => {
    const span = row.turns[index - history.length]
    const { turnId, promptLength, weightVersionStart, weightVersionEnd } = turn
    const completionLength = getKeptLength(turns, index)
    const { start, end } = span?.trained ? span : { start: 0, end: 0 }
    return { turnId, promptLength, completionLength, weightVersionStart, weightVersionEnd, start, end }
  })
  return {
    turns: placed,
    first: base - row.prompt_ids.length,
    base,
    responseLength: row.response_ids.length,
  }
}

function getAgentRole(chain: readonly TurnNode[]): AgentRole {
  return chain.findLast(({ line }) => line !== 'compaction')?.line ?? 'compaction'
}

/**
 * Returns the lowest and the highest weight version of the turns. If all versions are numbers, they are compared as
 * numbers (`9` before `10`). Other names have no order, so the result is the first and the last one in the row.
 *
 * If the version of a turn is unknown, both are null: the row may contain tokens of any age, and a trainer that drops
 * stale rows must not treat it as fresh.
 */
function computeVersionRange(turns: readonly TurnSpan[]): { min: string | null; max: string | null } {
  if (turns.some(isUnversioned)) return { min: null, max: null }
  const versions = turns.flatMap(getVersions).map((version) => version!)
  if (versions.every(isNumeric)) versions.sort((a, b) => Number(a) - Number(b))
  return { min: versions[0] ?? null, max: versions.at(-1) ?? null }
}

/**
 * Returns the spans of tokens whose weights are older than the newest ones of the turns, or unknown; none if all are
 * unknown. If the weights changed during an engine request, all of its tokens count as older, because the engine does
 * not report which weights sampled each.
 */
function findStaleSpans(turns: readonly TurnSpan[]): (readonly [start: number, end: number])[] {
  const versions = turns.flatMap(getVersions).filter((version) => version !== null)
  const newest = versions.every(isNumeric) ? Math.max(...versions.map(Number)) : versions.at(-1)
  if (versions.length === 0) return []
  const isStale = (version: string | null) =>
    version === null || (typeof newest === 'number' ? Number(version) : version) !== newest
  return turns.flatMap((turn) => {
    if (turn.engine_requests)
      return turn.engine_requests
        .filter(({ weight_version }) => isStale(weight_version))
        .map(({ start, end }) => [start, end] as const)
    return getVersions(turn).some(isStale) ? [[turn.start, turn.end] as const] : []
  })
}

function isUnversioned(turn: TurnSpan): boolean {
  return getVersions(turn).includes(null)
}

/** Returns the weight versions of a turn, from its first token to its last; null: unknown. */
function getVersions({ weight_version_start, weight_version_end, engine_requests }: TurnSpan) {
  const sampled = engine_requests?.filter(({ start, end }) => end > start)
  return sampled?.map(({ weight_version }) => weight_version) ?? [weight_version_start, weight_version_end]
}

function isNumeric(version: string): boolean {
  return version.trim() !== '' && Number.isFinite(Number(version))
}
