/**
 * From a session's turns to training-ready rows: one row per leaf of the tree of turns, token for token as sampled,
 * and each sampled token trained in one row only.
 */
import { noMarks, type SessionMarks } from '../../store/port/marks.ts'
import type { Reward, TurnRecord } from '../../store/port/turn-store.ts'
import { type AgentRole, isMainWork } from '../roles/agent-role.ts'
import { AgentRoleFinder, type AgentRoleMatch } from '../roles/agent-role-finder.ts'
import type { RoleInput } from '../roles/opening.ts'
import { policyOnRecord } from '../state/policies.ts'
import {
  assemble,
  assignTraining,
  createLayout,
  type Plan,
  type Trajectory,
  type TrajectoryOptions,
} from './assemble-row.ts'
import { Compactions } from './compactions.ts'
import { type AttemptTurn, findRepeatedByLast, Retries } from './retries.ts'
import type { RowLayout } from './row-details.ts'
import { type RowImage, SessionImages } from './row-images.ts'
import { type TrainableTurn, type TurnNode, TurnTree } from './turn-tree.ts'

export type { Trajectory, TrajectoryOptions, TurnSpan } from './assemble-row.ts'

/** Of which turns the rows are made. */
export interface TurnSelection {
  /** `main`: the main line, its compaction included. Default: `all`. */
  lines?: 'all' | 'main'
  /** Whether side calls are trained as well. Default: no. */
  sideCalls?: boolean
  /** Whether compactions that nobody went on from are trained, where others were tried. Default: no. */
  rejected?: boolean
}

/** Why no row is made of a turn. */
export const EXCLUSIONS = [
  'open',
  'aborted',
  'failed',
  'interrupted',
  'superseded',
  'rejected',
  'side',
  'empty',
] as const
type Exclusion = (typeof EXCLUSIONS)[number]

/** How many turns no row is made of, by why. */
export type ExclusionCounts = Record<Exclusion, number>

export interface RowLocation {
  readonly row: Trajectory
  layout(): RowLayout
}

/** Takes turns one by one, in call order, and keeps of them what the rows need. */
export class TrajectoryBuilder {
  readonly #selection: Required<TurnSelection>
  readonly #lines = new AgentRoleFinder()
  readonly #tree = new TurnTree()
  readonly #retries = new Retries()
  readonly #compactions = new Compactions()
  /** By turn; of those that have one. */
  readonly #policies = new Map<string, string>()
  readonly #images = new SessionImages()
  #lastAsked: { params: string; model: string | null } = { params: '{}', model: null }
  /** By turn; what later turns decide is not among it. */
  readonly #excluded = new Map<string, Exclusion>()

  constructor({ lines = 'all', sideCalls = false, rejected = false }: TurnSelection = {}) {
    this.#selection = { lines, sideCalls, rejected }
  }

  /** @returns the turn's line with the rule that found it, and the images that are new with it */
  add(
    turn: TrainableTurn & RoleInput & AttemptTurn & Pick<TurnRecord, 'completionText'>,
  ): AgentRoleMatch & { images: readonly RowImage[] } {
    const { line, rule } = this.#lines.add(turn)
    this.#compactions.add(turn, line)
    const images = this.#images.add(turn)
    const policy = policyOnRecord(turn)
    if (policy !== null) this.#policies.set(turn.turnId, policy)
    const sequence = this.#tree.read(turn)
    const isSelected = this.#selects(line)
    const tries = isSelected ? this.#retries.add(turn) : []
    if (turn.status !== 'completed') this.#excluded.set(turn.turnId, turn.status)
    else if (line === 'side' && !isSelected) this.#excluded.set(turn.turnId, 'side')
    // Nothing of it trains, and a prompt that fills the context was seen by no engine.
    else if (isSelected && isEmpty(turn)) this.#excluded.set(turn.turnId, 'empty')
    else if (isSelected) {
      const chosenModel = policy === null ? this.#getModel(turn) : undefined
      this.#tree.add({ ...turn, chosenModel }, sequence, line, findRepeatedByLast(tries, this.#wasRead))
    }
    return { line, rule, images }
  }

  /** Most turns of a session have the parameters of the one before, and are not parsed again. */
  #getModel({ params }: AttemptTurn): string | null {
    if (this.#lastAsked.params !== params) {
      const { model } = JSON.parse(params) as { model?: unknown }
      this.#lastAsked = { params, model: typeof model === 'string' ? model : null }
    }
    return this.#lastAsked.model
  }

  #selects(line: AgentRole): boolean {
    if (line === 'side' && !this.#selection.sideCalls) return false
    return this.#selection.lines === 'all' || isMainWork(line)
  }

  /** The turn that this one goes on from in a row; undefined: it begins one, or is in none. */
  getParent(turnId: string): { readonly turnId: string; readonly tokenCount: number } | undefined {
    const parent = this.#tree.find(turnId)?.parent
    return parent && { turnId: parent.turnId, tokenCount: parent.promptLength + parent.completionLength }
  }

  excluded(): ExclusionCounts {
    const counts = Object.fromEntries(EXCLUSIONS.map((why) => [why, 0])) as ExclusionCounts
    for (const why of this.exclusions().values()) counts[why] += 1
    return counts
  }

  /** Why turns are in no row, by their ids. */
  exclusions(): ReadonlyMap<string, Exclusion> {
    const all = new Map(this.#excluded)
    for (const turnId of this.#rejected()) all.set(turnId, 'rejected')
    for (const turnId of this.superseded()) all.set(turnId, 'superseded')
    return all
  }

  /** The ids of turns whose answers never reached the agent, as its retries say; see {@link Retries}. */
  superseded(): ReadonlySet<string> {
    const ghosts = this.#retries.ghosts(this.#wasRead)
    return new Set([...ghosts].filter((turnId) => this.#tree.has(turnId)))
  }

  #rejected(): string[] {
    return this.#selection.rejected
      ? []
      : [...this.#compactions.rejected].filter((turnId) => this.#tree.has(turnId))
  }

  /** The rows in order of their last turns; each is put together when it is pulled. */
  *rows(options: TrajectoryOptions, reward: Reward | null, marks?: SessionMarks): Generator<Trajectory> {
    for (const { row } of this.placedRows(options, reward, marks)) yield row
  }

  /** The same rows, each with where its turns are in it. */
  *placedRows(
    options: TrajectoryOptions,
    reward: Reward | null,
    marks: SessionMarks = noMarks(),
  ): Generator<RowLocation> {
    const leaves = this.#tree.leaves(new Set([...this.superseded(), ...this.#rejected()]))
    const policyOf = (turn: TurnNode) => this.#policies.get(turn.turnId) ?? null
    const isAsked = (turn: TurnNode) => options.policy === undefined || policyOf(turn) === options.policy
    const selected = select(leaves.map(this.#planOf), options.select ?? 'all')
    const plans = options.perTurn ? splitByTurn(selected).map(this.#planOfChain) : selected
    const trainedBy = assignTraining(plans, options, isAsked)
    for (const plan of plans) {
      const trains = plan.chain.some((turn) => trainedBy.get(turn) === plan)
      if (!trains && options.policy !== undefined) continue
      const row = assemble(plan, options, { trainedBy, reward, marks, policyOf })
      yield { row, layout: () => createLayout(plan, row) }
    }
  }

  readonly #planOf = (leaf: TurnNode): Plan => this.#planOfChain(chainTo(leaf))

  readonly #planOfChain = (chain: readonly TurnNode[]): Plan => {
    const last = chain.at(-1)!
    const base = chain[0]!.promptLength
    const responseLength = last.promptLength + last.completionLength - base
    return { chain, last, base, responseLength, images: this.#images.of(last.turnId) }
  }

  readonly #wasRead = (turnId: string) => this.#tree.isContinued(turnId)
}

function isEmpty({ exact, completionTokenIds }: TrainableTurn): boolean {
  return exact && completionTokenIds.length === 0
}

function chainTo(leaf: TurnNode): TurnNode[] {
  const chain: TurnNode[] = []
  for (let turn: TurnNode | undefined = leaf; turn !== undefined; turn = turn.parent) chain.push(turn)
  return chain.reverse()
}

function select(plans: Plan[], which: 'all' | 'longest' | 'last'): Plan[] {
  if (which === 'all' || plans.length === 0) return plans
  if (which === 'last') return plans.slice(-1)
  return [plans.reduce((longest, plan) => (plan.responseLength > longest.responseLength ? plan : longest))]
}

function splitByTurn(plans: Plan[]): TurnNode[][] {
  const turns = new Set(plans.flatMap((plan) => plan.chain))
  return [...turns].sort((a, b) => a.index - b.index).map((turn) => [turn])
}
