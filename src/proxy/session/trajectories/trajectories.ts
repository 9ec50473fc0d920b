/**
 * Builds rows for training from a session's turns: one row per leaf of the tree of turns, with exactly the sampled
 * tokens. Each sampled token is trained in only one row.
 */
import type { RowImage } from '../../../protocol/schema/row.ts'
import { createNoMarks, type SessionMarks } from '../../store/port/marks.ts'
import type { Reward, TurnRecord } from '../../store/port/turn-store.ts'
import { getReplacedEnd } from '../matching/recorded-parent.ts'
import { type AgentRole, isMainWork } from '../roles/agent-role.ts'
import { AgentRoleFinder, type AgentRoleMatch } from '../roles/agent-role-finder.ts'
import type { RoleInput } from '../roles/opening.ts'
import { readRecordedPolicy } from '../state/policies.ts'
import {
  assemble,
  assignTraining,
  createLayout,
  type RowPlan,
  type Trajectory,
  type TrajectoryOptions,
} from './assemble-row.ts'
import { CompactionRejections } from './compactions.ts'
import { readEngineRequests } from './engine-requests.ts'
import { type AttemptTurn, findRepeatedByLast, SessionAttempts } from './retries.ts'
import type { RowLayout } from './row-details.ts'
import { SessionImages } from './row-images.ts'
import { type TrainableTurn, type TurnNode, TurnTree } from './turn-tree.ts'

export type { Trajectory, TrajectoryOptions, TurnSpan } from './assemble-row.ts'

/** The selection of the turns from which rows are built. */
export interface TurnSelection {
  /** `main`: only turns of the main agent, including its compactions. Default: `all`. */
  lines?: 'all' | 'main'
  /** Whether to include side requests. Default: no. */
  sideCalls?: boolean
  /** Whether to include rejected compactions. Default: no. */
  rejected?: boolean
}

/** The reasons for which a turn is excluded from all rows. */
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

/** The numbers of excluded turns by reason. */
export type ExclusionCounts = Record<Exclusion, number>

/** The turn that another one continues in a row. */
interface RowParent {
  readonly turnId: string
  /** The number of its tokens with which the other turn's prompt begins. */
  readonly tokenCount: number
  /** Whether these are all tokens of its prompt and completion. */
  readonly isWhole: boolean
}

/** A row, and a function that computes its layout. */
export interface RowWithLayout {
  readonly row: Trajectory
  computeLayout(): RowLayout
}

/** A builder of rows. Turns must be added one by one, in index order. Only the parts that rows need are retained. */
export class TrajectoryBuilder {
  readonly #selection: Required<TurnSelection>
  readonly #lines = new AgentRoleFinder()
  readonly #retries = new SessionAttempts()
  readonly #tree = new TurnTree((turnIds) => this.#retries.findSupersededBeside(turnIds, this.#wasRead))
  readonly #compactions = new CompactionRejections()
  /** The policies of turns that have one, by turn id. */
  readonly #policies = new Map<string, string>()
  readonly #images = new SessionImages()
  /** The model in the parameters that were parsed last. */
  #lastRequested: { params: string; model: string | null } = { params: '{}', model: null }
  /** The exclusions by turn id, except those that depend on later turns. */
  readonly #excluded = new Map<string, Exclusion>()

  constructor({ lines = 'all', sideCalls = false, rejected = false }: TurnSelection = {}) {
    this.#selection = { lines, sideCalls, rejected }
  }

  /**
   * Adds a turn.
   * @returns its agent role with the rule that determined it, and the images that are new in its prompt
   */
  add(
    turn: TrainableTurn & RoleInput & AttemptTurn & Pick<TurnRecord, 'completionText'>,
  ): AgentRoleMatch & { images: readonly RowImage[] } {
    const { agentRole: line, rule } = this.#lines.add(turn)
    this.#compactions.add(turn, line)
    const images = this.#images.add(turn)
    const policy = readRecordedPolicy(turn)
    if (policy !== null) this.#policies.set(turn.turnId, policy)
    const sequence = this.#tree.read(turn)
    const isSelected = this.#selects(line)
    const tries = isSelected ? this.#retries.add(turn) : []
    if (turn.status !== 'completed') this.#excluded.set(turn.turnId, turn.status)
    else if (line === 'side' && !isSelected) this.#excluded.set(turn.turnId, 'side')
    // The turn has no token to train, and no engine has read its prompt if that fills the context.
    else if (isSelected && isEmpty(turn)) this.#excluded.set(turn.turnId, 'empty')
    else if (isSelected) {
      const chosenModel = policy === null ? this.#getModel(turn) : undefined
      const engineRequests = readEngineRequests(turn)
      const trainable = { ...turn, chosenModel, replacedEnd: getReplacedEnd(turn), engineRequests }
      this.#tree.add(trainable, sequence, line, findRepeatedByLast(tries, this.#wasRead))
    }
    return { agentRole: line, rule, images }
  }

  /** Returns the model that a turn's params request. Equal params of consecutive turns are parsed once. */
  #getModel({ params }: AttemptTurn): string | null {
    if (this.#lastRequested.params !== params) {
      const { model } = JSON.parse(params) as { model?: unknown }
      this.#lastRequested = { params, model: typeof model === 'string' ? model : null }
    }
    return this.#lastRequested.model
  }

  #selects(line: AgentRole): boolean {
    if (line === 'side' && !this.#selection.sideCalls) return false
    return this.#selection.lines === 'all' || isMainWork(line)
  }

  /** Returns the turn that this one continues in a row; undefined: this turn begins a row, or is in none. */
  getParent(turnId: string): RowParent | undefined {
    const { parent, sharedLength: tokenCount } = this.#tree.find(turnId) ?? {}
    if (parent === undefined) return undefined
    const isComplete = tokenCount === parent.promptLength + parent.completionLength
    return { turnId: parent.turnId, tokenCount: tokenCount!, isWhole: isComplete }
  }

  countExcluded(): ExclusionCounts {
    const counts = Object.fromEntries(EXCLUSIONS.map((reason) => [reason, 0])) as ExclusionCounts
    for (const reason of this.listExclusions().values()) counts[reason] += 1
    return counts
  }

  /** Returns the excluded turns with their reasons, by turn id. */
  listExclusions(): ReadonlyMap<string, Exclusion> {
    const all = new Map(this.#excluded)
    for (const turnId of this.#listRejected()) all.set(turnId, 'rejected')
    for (const turnId of this.findSuperseded()) all.set(turnId, 'superseded')
    return all
  }

  /** Returns the ids of turns whose response never reached the agent, as determined by {@link SessionAttempts}. */
  findSuperseded(): ReadonlySet<string> {
    const superseded = this.#retries.findSuperseded(this.#wasRead)
    return new Set([...superseded].filter((turnId) => this.#tree.has(turnId)))
  }

  /** Returns the ids of excluded turns whose compaction was rejected. */
  #listRejected(): string[] {
    return this.#selection.rejected
      ? []
      : [...this.#compactions.rejected].filter((turnId) => this.#tree.has(turnId))
  }

  /** Yields the rows in the order of their last turns. Each is assembled when it is requested. */
  *assembleRows(
    options: TrajectoryOptions,
    reward: Reward | null,
    marks?: SessionMarks,
  ): Generator<Trajectory> {
    for (const { row } of this.locateRows(options, reward, marks)) yield row
  }

  /** Yields the same rows as {@link assembleRows}, each with its layout. */
  *locateRows(
    options: TrajectoryOptions,
    reward: Reward | null,
    marks: SessionMarks = createNoMarks(),
  ): Generator<RowWithLayout> {
    const leaves = this.#tree.listLeaves(new Set([...this.findSuperseded(), ...this.#listRejected()]))
    const getPolicy = (turn: TurnNode) => this.#policies.get(turn.turnId) ?? null
    const isRequested = (turn: TurnNode) => options.policy === undefined || getPolicy(turn) === options.policy
    const selected = select(leaves.map(this.#planOf), options.select ?? 'all')
    const plans = options.perTurn ? splitByTurn(selected).map(this.#planOfChain) : selected
    const trainedBy = assignTraining(plans, options, isRequested)
    for (const plan of plans) {
      const trains = plan.chain.some((turn) => trainedBy.get(turn) === plan)
      if (!trains && options.policy !== undefined) continue
      const row = assemble(plan, options, { trainedBy, reward, marks, policyOf: getPolicy })
      yield { row, computeLayout: () => createLayout(plan, row) }
    }
  }

  readonly #planOf = (leaf: TurnNode): RowPlan => this.#planOfChain(getChain(leaf))

  readonly #planOfChain = (chain: readonly TurnNode[]): RowPlan => {
    const last = chain.at(-1)!
    const base = chain[0]!.promptLength
    const responseLength = last.promptLength + last.completionLength - base
    return { chain, last, base, responseLength, images: this.#images.getImages(last.turnId) }
  }

  readonly #wasRead = (turnId: string) => this.#tree.isContinued(turnId)
}

function isEmpty({ exact, completionTokenIds }: TrainableTurn): boolean {
  return exact && completionTokenIds.length === 0
}

/** Returns a turn and its ancestors, from the first to the last. */
function getChain(leaf: TurnNode): TurnNode[] {
  const chain: TurnNode[] = []
  for (let turn: TurnNode | undefined = leaf; turn !== undefined; turn = turn.parent) chain.push(turn)
  return chain.reverse()
}

function select(plans: RowPlan[], which: 'all' | 'longest' | 'last'): RowPlan[] {
  if (which === 'all' || plans.length === 0) return plans
  if (which === 'last') return plans.slice(-1)
  return [plans.reduce((longest, plan) => (plan.responseLength > longest.responseLength ? plan : longest))]
}

function splitByTurn(plans: RowPlan[]): TurnNode[][] {
  const turns = new Set(plans.flatMap((plan) => plan.chain))
  return [...turns].sort((a, b) => a.index - b.index).map((turn) => [turn])
}
