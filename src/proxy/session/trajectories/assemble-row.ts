/** One row of a chain of turns: which turns it trains, where their tokens are in it, and what is cut off. */
import { isCutByEngine } from '../../../protocol/canonical/finish-reason.ts'
import type { SessionMarks } from '../../store/port/marks.ts'
import type { Reward } from '../../store/port/turn-store.ts'
import type { AgentRole } from '../roles/agent-role.ts'
import type { RowLayout } from './row-details.ts'
import { beginOutside, endOutside, imagesWithin, type RowImage } from './row-images.ts'
import type { TurnNode } from './turn-tree.ts'

export interface TrajectoryOptions {
  /** Keeps the last n tokens of the prompt, like verl's left truncation. */
  promptLength?: number | undefined
  /** Keeps the first n tokens of the response. */
  responseLength?: number | undefined
  /** `longest`: the row with the longest uncut response (of equals the first). `last`: the one that ends last. */
  select?: 'all' | 'longest' | 'last'
  /** Splits the selected rows: a row per turn, with the turn's whole prompt. */
  perTurn?: boolean
  /** Trains the turns of this policy alone, and makes only rows that train one. Default: whatever policy a turn has. */
  policy?: string
}

/** Where a turn's completion is in `response_ids`. */
export interface TurnSpan {
  turn_id: string
  index: number
  line: AgentRole
  /** The model that the session named for it; null: it named none. */
  policy: string | null
  /** Offsets; equal when the cut left nothing of the turn. */
  start: number
  end: number
  /** Whether the mask is 1 there; if not, another row trains it. */
  trained: boolean
  /** Its own, in each row that it is in; null: it was given none. */
  reward: number | null
  /** Of people. */
  labels: readonly string[]
  finish_reason: string | null
  weight_version_start: string | null
  weight_version_end: string | null
}

/** One row, under the names that it has on the wire. */
export interface Trajectory {
  /** Of the last turn; of the turns before it, if that one sums them up. */
  line: AgentRole
  /** Of all its turns; null where they have none, or several. */
  policy: string | null
  prompt_ids: Int32Array
  response_ids: Int32Array
  /** 1 on sampled tokens that this row trains, 0 elsewhere. As long as `response_ids`. */
  response_mask: Uint8Array
  /** 0.0 where the mask is 0. As long as `response_ids`. */
  response_logprobs: Float64Array
  turns: TurnSpan[]
  num_turns: number
  /** Of the last turn. */
  finish_reason: string | null
  /**
   * Lowest and highest of the turns that the row keeps tokens of; null if one of them has none. See {@link
   * versionRange}.
   */
  weight_version_min: string | null
  weight_version_max: string | null
  /** Of the turns that the row keeps tokens of, those whose version is not known at their start or their end. */
  unversioned_turns: number
  /** The line's, where it has one of its own, else the session's. */
  reward: number | null
  reward_components: Record<string, number>
  /** Of the session. */
  labels: readonly string[]
  /** False: the engine did not tell exact ids, and the row has none. */
  exact: boolean
  inexact_reason: string | null
  /** `responseLength` cut something off. */
  truncated: boolean
  /** `promptLength` cut something off. */
  prompt_truncated: boolean
  /** Whose tokens are among those of prompt and response, in order; none is cut. Absent: there are none. */
  images?: RowImage[]
}

/** A row before its tokens are put together. */
export interface Plan {
  /** From the first turn to the last; each the parent of the next. Never empty. */
  readonly chain: readonly TurnNode[]
  readonly last: TurnNode
  /** Length of the first turn's prompt, from where the response counts. */
  readonly base: number
  readonly responseLength: number
  /** Of the last turn's prompt. */
  readonly images: readonly RowImage[]
}

/** Which row trains each turn: the one that keeps most of it, of equals the first. */
export function assignTraining(
  plans: Plan[],
  options: TrajectoryOptions,
  isAsked: (turn: TurnNode) => boolean,
): Map<TurnNode, Plan> {
  const best = new Map<TurnNode, { plan: Plan; kept: number }>()
  for (const plan of plans) {
    for (const turn of plan.chain) {
      if (!isAsked(turn)) continue
      const { start, end } = computeSpan(turn, plan, options)
      if (end - start > (best.get(turn)?.kept ?? 0)) best.set(turn, { plan, kept: end - start })
    }
  }
  return new Map([...best].map(([turn, { plan }]) => [turn, plan]))
}

function keptResponse(plan: Plan, { responseLength = Number.POSITIVE_INFINITY }: TrajectoryOptions): number {
  if (responseLength >= plan.responseLength) return plan.responseLength
  return endOutside(plan.images, plan.base + responseLength) - plan.base
}

function computeSpan(turn: TurnNode, plan: Plan, options: TrajectoryOptions): { start: number; end: number } {
  const kept = keptResponse(plan, options)
  const start = turn.promptLength - plan.base
  return { start: Math.min(start, kept), end: Math.min(start + turn.completionLength, kept) }
}

/** What all rows of a session have in common. */
interface RowContext {
  readonly trainedBy: ReadonlyMap<TurnNode, Plan>
  readonly reward: Reward | null
  readonly marks: SessionMarks
  policyOf(turn: TurnNode): string | null
}

export function assemble(
  plan: Plan,
  options: TrajectoryOptions,
  { trainedBy, reward, marks, policyOf }: RowContext,
): Trajectory {
  const { chain, last, base, images } = plan
  const tokens = last.tokens.read(base + plan.responseLength)
  const kept = keptResponse(plan, options)
  const promptStart = beginOutside(images, Math.max(0, base - (options.promptLength ?? base)))
  const mask = new Uint8Array(kept)
  const logprobs = new Float64Array(kept)
  const turns = chain.map((turn) => ({
    turn_id: turn.turnId,
    index: turn.index,
    line: turn.line,
    ...computeSpan(turn, plan, options),
    trained: trainedBy.get(turn) === plan,
    finish_reason: turn.finishReason,
    weight_version_start: turn.weightVersionStart,
    weight_version_end: turn.weightVersionEnd,
    policy: policyOf(turn),
    reward: reward?.turns?.[turn.index] ?? null,
    labels: marks.turns[turn.index]?.labels ?? [],
  }))
  const line = getAgentRole(chain)
  turns.forEach(({ start, end, trained }, position) => {
    if (!trained) return
    mask.fill(1, start, end)
    logprobs.set(chain[position]!.completionLogprobs.subarray(0, end - start), start)
  })
  const keptTurns = turns.filter(({ start, end }) => end > start)
  const versions = versionRange(keptTurns)
  return {
    line,
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
    reward: reward?.lines?.[line] ?? reward?.reward ?? null,
    reward_components: reward?.components ?? {},
    labels: marks.labels,
    exact: last.exact,
    inexact_reason: last.inexactReason,
    truncated: kept < plan.responseLength || isCutByEngine(last.finishReason),
    prompt_truncated: promptStart > 0,
    ...(last.exact && images.length > 0 && { images: imagesWithin(images, promptStart, base + kept) }),
  }
}

/** The turns before a row of one turn have reported its prompt as well. */
export function createLayout({ chain, base }: Plan, row: Trajectory): RowLayout {
  const history: TurnNode[] = []
  for (let turn = chain[0]!.parent; turn !== undefined; turn = turn.parent) history.push(turn)
  const placed = [...history.reverse(), ...chain].map((turn, place) => {
    const span = row.turns[place - history.length]
    const { turnId, promptLength, completionLength, weightVersionStart, weightVersionEnd } = turn
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
 * The lowest and the highest version that sampled. If all are numbers they compare as numbers (`9` before `10`);
 * other names have no order but that of their appearance: then it is the first and the last that was seen.
 *
 * Where the version of one turn is not known there is neither: tokens of any age may be in the row, and a trainer that
 * drops stale rows must not take it for as fresh as its other turns.
 */
function versionRange(turns: readonly TurnSpan[]): { min: string | null; max: string | null } {
  if (turns.some(isUnversioned)) return { min: null, max: null }
  const versions = turns.flatMap((turn) => [turn.weight_version_start!, turn.weight_version_end!])
  if (versions.every(isNumeric)) versions.sort((a, b) => Number(a) - Number(b))
  return { min: versions[0] ?? null, max: versions.at(-1) ?? null }
}

function isUnversioned({ weight_version_start: start, weight_version_end: end }: TurnSpan): boolean {
  return start === null || end === null
}

function isNumeric(version: string): boolean {
  return version.trim() !== '' && Number.isFinite(Number(version))
}
