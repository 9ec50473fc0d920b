/** The tree of a session's turns, which is derived from their token ids. */
import type { EngineRequest } from '../../../protocol/schema/row.ts'
import type { TurnRecord, TurnStep } from '../../store/port/turn-store.ts'
import type { AgentRole } from '../roles/agent-role.ts'
import { TokenNode } from './token-tree.ts'

/** The parts of a turn that rows need. */
export type TrainableTurn = Pick<
  TurnRecord,
  | 'index'
  | 'status'
  | 'retryCount'
  | 'completionLogprobs'
  | 'exact'
  | 'inexactReason'
  | 'finishReason'
  | 'weightVersionStart'
  | 'weightVersionEnd'
> &
  TurnTokenIds & {
    /** The model that the agent requested; null: it requested none; undefined: the session's policy replaced it. */
    readonly chosenModel?: string | null | undefined
    /** The replaced end of the turn that the prompt continues. Absent: the prompt replaces nothing. */
    readonly replacedEnd?: EndReplacement | undefined
    /** The turn's engine requests, with offsets in its completion. Absent: it had only one. */
    readonly engineRequests?: readonly EngineRequest[] | undefined
  }

/** The tokens at the end of a turn's completion that a later prompt replaces with the template's. */
interface EndReplacement {
  readonly turnId: string
  /** The number of replaced tokens. */
  readonly tokens: number
}

/** A completed turn in the tree. The ids of its prompt are read from the token tree when a row needs them. */
export interface TurnNode extends Omit<TrainableTurn, 'completionTokenIds' | 'replacedEnd'> {
  readonly line: AgentRole
  readonly parent: TurnNode | undefined
  /** The number of the parent's tokens (prompt and completion) with which the prompt begins; 0 without a parent. */
  readonly sharedLength: number
  hasChildren: boolean
  readonly promptLength: number
  readonly completionLength: number
  readonly prompt: TokenNode
  /** The sequence of prompt and completion. */
  readonly tokens: TokenNode
}

/**
 * The tree of turns, which must be added in index order. The parent of a turn is the deepest earlier turn whose prompt
 * and completion together are a prefix of its prompt, except for tokens that the prompt replaces according to its
 * record.
 *
 * - Of several turns with equal prompt and equal completion, the latest one without a child becomes the parent, or else
 *   the latest: each of several equal parallel samples is continued once. A turn whose response was lost, because a
 *   retry repeats it, becomes the parent only if no other turn has these tokens.
 * - The retry of a turn has the same parent as that turn, if their prompts are equal.
 * - A turn does not continue one for which the agent requested another model, because a row would train both as one
 *   model.
 * - A turn without exact ids has neither a parent nor children, because its relations would be guesses.
 */
export class TurnTree {
  readonly #sequences = new TurnSequences()
  readonly #turns: TurnNode[] = []
  readonly #byId = new Map<string, TurnNode>()
  readonly #byTokens = new Map<TokenNode, TurnNode[]>()
  readonly #findLost: (turnIds: readonly string[]) => ReadonlySet<string>

  /** @param findLost returns those of some turns whose response was lost, according to the turns so far */
  constructor(findLost: (turnIds: readonly string[]) => ReadonlySet<string> = () => new Set()) {
    this.#findLost = findLost
  }

  /**
   * Adds the ids of a turn to the token tree. This is required for every turn, whether or not {@link add} follows,
   * because a later turn may be recorded relative to it. Copies only new ids.
   */
  read(turn: TurnTokenIds): TurnSequence {
    return this.#sequences.add(turn)
  }

  /**
   * Adds a completed turn. References its logprobs without a copy.
   * @param sequence the result of {@link read} for the turn
   * @param repeats the id of the turn of which this one is a retry
   */
  add(turn: TrainableTurn, sequence: TurnSequence, line: AgentRole, repeats?: string): void {
    const node = turn.exact
      ? this.#addExact(turn, sequence, line, repeats)
      : createNode(turn, this.#sequences.none, line, NO_PARENT)
    this.#turns.push(node)
    this.#byId.set(turn.turnId, node)
  }

  /** Returns whether another turn continues this one. */
  isContinued(turnId: string): boolean {
    return this.#byId.get(turnId)?.hasChildren === true
  }

  #addExact(
    turn: TrainableTurn,
    sequence: TurnSequence,
    line: AgentRole,
    repeats: string | undefined,
  ): TurnNode {
    const { prompt } = sequence
    const first = repeats === undefined ? undefined : this.#byId.get(repeats)
    // Equal requests may have different prompts, for example if a template inserts the time.
    const found = first?.prompt === prompt ? first : this.#findParent(prompt, turn)
    const node = createNode(turn, sequence, line, found)
    if (found.parent !== undefined) found.parent.hasChildren = true
    const equal = this.#byTokens.get(node.tokens)
    if (equal === undefined) this.#byTokens.set(node.tokens, [node])
    else equal.push(node)
    return node
  }

  /** Returns the turn with whose tokens the prompt begins, the one with the most shared tokens. */
  #findParent(prompt: TokenNode, turn: TrainableTurn): ParentLink {
    const parent = this.#findDeepest(prompt, turn)
    const full = parent === undefined ? NO_PARENT : { parent, sharedLength: getLength(parent) }
    const cut = this.#withReplacedEnd(prompt, turn)
    return cut !== undefined && cut.sharedLength > full.sharedLength ? cut : full
  }

  /** Returns the turn whose end the prompt replaces, provided that the prompt has all its other tokens. */
  #withReplacedEnd(prompt: TokenNode, turn: TrainableTurn): ParentLink | undefined {
    const { turnId, tokens } = turn.replacedEnd ?? {}
    const named = turnId === undefined ? undefined : this.#byId.get(turnId)
    if (named === undefined || !named.exact || !mayContinue(named.chosenModel, turn.chosenModel))
      return undefined
    const parent = this.#findDelivered(named, turn)
    const sharedLength = getLength(parent) - tokens!
    const shared = parent.tokens.getPrefix(getLength(parent), sharedLength)
    for (let at: TokenNode | undefined = prompt; at !== undefined; at = at.parent)
      if (at === shared) return { parent, sharedLength }
    return undefined
  }

  /** Returns a turn, or if its response was lost, the turn with equal tokens that a prompt can continue instead. */
  #findDelivered(named: TurnNode, turn: TrainableTurn): TurnNode {
    if (!this.#findLost([named.turnId]).has(named.turnId)) return named
    return this.#selectEqual(this.#listContinuable(named.tokens, turn))
  }

  /** Returns the turns with these tokens that a turn may continue. */
  #listContinuable(tokens: TokenNode, turn: TrainableTurn): TurnNode[] {
    const turns = this.#byTokens.get(tokens) ?? []
    return turns.filter((before) => mayContinue(before.chosenModel, turn.chosenModel))
  }

  /** Returns the deepest turn that is a complete prefix of the prompt. */
  #findDeepest(prompt: TokenNode, turn: TrainableTurn): TurnNode | undefined {
    for (let at: TokenNode | undefined = prompt; at !== undefined; at = at.parent) {
      const turns = this.#listContinuable(at, turn)
      if (turns.length > 0) return this.#selectEqual(turns)
    }
    return undefined
  }

  /** Returns the turn that a prompt continues, of several turns with equal tokens. */
  #selectEqual(turns: readonly TurnNode[]): TurnNode {
    if (turns.length === 1) return turns[0]!
    const lost = this.#findLost(turns.map(({ turnId }) => turnId))
    const delivered = turns.filter(({ turnId }) => !lost.has(turnId))
    const candidates = delivered.length > 0 ? delivered : turns
    return candidates.findLast(({ hasChildren }) => !hasChildren) ?? candidates.at(-1)!
  }

  /**
   * Returns the last turns of all conversations, in index order. If a turn is omitted, its parent may become a last
   * one.
   * @param leftOut the ids of turns to omit
   */
  listLeaves(leftOut: ReadonlySet<string>): TurnNode[] {
    const counted = this.#turns.filter(({ turnId }) => !leftOut.has(turnId))
    const continued = new Set(counted.map(({ parent }) => parent))
    return counted.filter((turn) => !continued.has(turn))
  }

  has(turnId: string): boolean {
    return this.#byId.has(turnId)
  }

  find(turnId: string): TurnNode | undefined {
    return this.#byId.get(turnId)
  }
}

/** The parent of a turn, and the number of shared tokens. */
type ParentLink = Pick<TurnNode, 'parent' | 'sharedLength'>

const NO_PARENT: ParentLink = { parent: undefined, sharedLength: 0 }

/** Returns the number of tokens of a turn's prompt and completion. */
function getLength({ promptLength, completionLength }: TurnNode): number {
  return promptLength + completionLength
}

function createNode(
  turn: TrainableTurn,
  { prompt, promptLength, tokens, length }: TurnSequence,
  line: AgentRole,
  { parent, sharedLength }: ParentLink,
): TurnNode {
  // The fields are copied one by one, because the argument may be a complete record, and the messages of ten thousand
  // records would exhaust the memory.
  return {
    line,
    turnId: turn.turnId,
    index: turn.index,
    status: turn.status,
    retryCount: turn.retryCount,
    completionLogprobs: turn.completionLogprobs,
    exact: turn.exact,
    inexactReason: turn.inexactReason,
    finishReason: turn.finishReason,
    weightVersionStart: turn.weightVersionStart,
    weightVersionEnd: turn.weightVersionEnd,
    engineRequests: turn.engineRequests,
    chosenModel: turn.chosenModel,
    parent,
    sharedLength,
    hasChildren: false,
    promptLength,
    completionLength: length - promptLength,
    prompt,
    tokens,
  }
}

function mayContinue(before: TrainableTurn['chosenModel'], now: TrainableTurn['chosenModel']): boolean {
  return before === undefined || now === undefined || before === now
}

/**
 * The token ids of a turn: those of its completion, and either those of its prompt or the difference from an earlier
 * prompt.
 */
type TurnTokenIds = Pick<TurnRecord, 'turnId' | 'completionTokenIds'> &
  (Pick<TurnRecord, 'promptTokenIds'> | Pick<TurnStep, 'promptStep'>)

/** The nodes of a turn in the token tree. */
interface TurnSequence {
  readonly prompt: TokenNode
  readonly promptLength: number
  /** The sequence of prompt and completion. */
  readonly tokens: TokenNode
  /** The length of prompt and completion. */
  readonly length: number
}

/** The sequences of a session's turns, as nodes of one token tree. */
class TurnSequences {
  readonly #root = TokenNode.root()
  /** The sequence of turns without exact ids. */
  readonly none: TurnSequence = { prompt: this.#root, promptLength: 0, tokens: this.#root, length: 0 }
  readonly #byTurn = new Map<string, TurnSequence>()

  /**
   * Adds a turn. Every turn must be added, whatever its status, because a later one may be recorded relative to it.
   * Copies only new ids.
   */
  add(turn: TurnTokenIds): TurnSequence {
    const { base, shared, rest } = 'promptStep' in turn ? turn.promptStep : completeStep(turn.promptTokenIds)
    const prompt = this.#begin(base, shared).descend(rest)
    const promptLength = shared + rest.length
    const sequence = {
      prompt,
      promptLength,
      tokens: prompt.descend(turn.completionTokenIds),
      length: promptLength + turn.completionTokenIds.length,
    }
    this.#byTurn.set(turn.turnId, sequence)
    return sequence
  }

  #begin(base: string | null, shared: number): TokenNode {
    if (base === null) return this.#root
    const found = this.#byTurn.get(base)
    if (found === undefined) throw new Error(`turn ${base}, the base of another one, was not read before it`)
    return found.tokens.getPrefix(found.length, shared)
  }
}

function completeStep(promptTokenIds: Int32Array): TurnStep['promptStep'] {
  return { base: null, shared: 0, rest: promptTokenIds }
}
