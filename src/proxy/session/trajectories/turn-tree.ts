/** The tree of a session's turns, derived from their token ids alone. */
import type { EngineRequest } from '../../../protocol/schema/row.ts'
import type { TurnRecord, TurnStep } from '../../store/port/turn-store.ts'
import type { AgentRole } from '../roles/agent-role.ts'
import { TokenNode } from './token-tree.ts'

/** The parts of a turn that training needs. */
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
    /** The model that the agent requested; null: none; undefined: the session's policy has overridden it. */
    readonly chosenModel?: string | null | undefined
    /** The turn whose end the prompt replaces; absent: none. */
    readonly replacedEnd?: EndReplacement | undefined
    /** Its engine requests, with offsets in its completion; absent: it had one. */
    readonly engineRequests?: readonly EngineRequest[] | undefined
  }

/** Tokens at the end of a turn's completion that a later prompt replaces with the template's token. */
interface EndReplacement {
  readonly turnId: string
  readonly tokens: number
}

/** A completed turn in the tree. Its prompt is not kept but read from the token tree when a row needs it. */
export interface TurnNode extends Omit<TrainableTurn, 'completionTokenIds' | 'replacedEnd'> {
  readonly line: AgentRole
  readonly parent: TurnNode | undefined
  /** The number of the parent's tokens, prompt and completion, that the prompt begins with; without a parent 0. */
  readonly sharedLength: number
  hasChildren: boolean
  readonly promptLength: number
  readonly completionLength: number
  readonly prompt: TokenNode
  /** Prompt and completion. */
  readonly tokens: TokenNode
}

/**
 * The tree of turns. Turns are added in index order. A turn's parent is the deepest earlier turn whose prompt and
 * completion together are a prefix of its prompt, except for tokens that the prompt is recorded to replace.
 *
 * - Of several turns with equal prompt and equal completion, the latest one without a child becomes the parent, or else
 *   the latest: each of several equal parallel samples is continued once.
 * - A client's retry has the parent of the turn that it repeats, if their prompts are equal.
 * - A turn does not continue a turn for which the agent requested another model: one row would train both as one.
 * - A turn without exact ids has no parent and no children: any relation would be a guess.
 */
export class TurnTree {
  readonly #sequences = new TurnSequences()
  readonly #turns: TurnNode[] = []
  readonly #byId = new Map<string, TurnNode>()
  readonly #byTokens = new Map<TokenNode, TurnNode[]>()

  /** Reads the ids of a turn. Every turn must be read, whether or not it is added. Copies only new ids. */
  read(turn: TurnTokenIds): TurnSequence {
    return this.#sequences.add(turn)
  }

  /**
   * Adds a completed turn. Keeps its logprobs by reference.
   * @param sequence result of {@link read} for the turn
   * @param repeats the id of the turn that this one is a retry of
   */
  add(turn: TrainableTurn, sequence: TurnSequence, line: AgentRole, repeats?: string): void {
    const node = turn.exact
      ? this.#addExact(turn, sequence, line, repeats)
      : createNode(turn, this.#sequences.none, line, NO_PARENT)
    this.#turns.push(node)
    this.#byId.set(turn.turnId, node)
  }

  /** Returns whether another turn continues the turn. */
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
    // An equal request may have rendered to another prompt, for example if a template inserts the time.
    const found = first?.prompt === prompt ? first : this.#findParent(prompt, turn)
    const node = createNode(turn, sequence, line, found)
    if (found.parent !== undefined) found.parent.hasChildren = true
    const equal = this.#byTokens.get(node.tokens)
    if (equal === undefined) this.#byTokens.set(node.tokens, [node])
    else equal.push(node)
    return node
  }

  #findParent(prompt: TokenNode, call: TrainableTurn): ParentLink {
    const parent = this.#deepestWithin(prompt, call)
    const full = parent === undefined ? NO_PARENT : { parent, sharedLength: getLength(parent) }
    const cut = this.#withReplacedEnd(prompt, call)
    return cut !== undefined && cut.sharedLength > full.sharedLength ? cut : full
  }

  /** Returns the turn whose end the prompt replaces, if the prompt has its other tokens. */
  #withReplacedEnd(prompt: TokenNode, call: TrainableTurn): ParentLink | undefined {
    const { turnId, tokens } = call.replacedEnd ?? {}
    const parent = turnId === undefined ? undefined : this.#byId.get(turnId)
    if (parent === undefined || !parent.exact || !mayContinue(parent.chosenModel, call.chosenModel))
      return undefined
    const sharedLength = getLength(parent) - tokens!
    const shared = parent.tokens.getPrefix(getLength(parent), sharedLength)
    for (let at: TokenNode | undefined = prompt; at !== undefined; at = at.parent)
      if (at === shared) return { parent, sharedLength }
    return undefined
  }

  #deepestWithin(prompt: TokenNode, call: TrainableTurn): TurnNode | undefined {
    for (let at: TokenNode | undefined = prompt; at !== undefined; at = at.parent) {
      const turns = this.#byTokens.get(at)?.filter((turn) => mayContinue(turn.chosenModel, call.chosenModel))
      if (turns?.length) return turns.findLast((turn) => !turn.hasChildren) ?? turns.at(-1)
    }
    return undefined
  }

  /**
   * Returns the last turns of all conversations, in index order. If a turn is left out, its parent may become a last
   * one.
   * @param leftOut ids of turns to ignore
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

type ParentLink = Pick<TurnNode, 'parent' | 'sharedLength'>

const NO_PARENT: ParentLink = { parent: undefined, sharedLength: 0 }

/** Returns the number of tokens of prompt and completion. */
function getLength({ promptLength, completionLength }: TurnNode): number {
  return promptLength + completionLength
}

function createNode(
  turn: TrainableTurn,
  { prompt, promptLength, tokens, length }: TurnSequence,
  line: AgentRole,
  { parent, sharedLength }: ParentLink,
): TurnNode {
  // Fields are copied one by one: the argument may be a complete record, and the messages of ten thousand records fill
  // the memory.
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

/** A turn's ids: its complete prompt, or its difference from an earlier turn. */
type TurnTokenIds = Pick<TurnRecord, 'turnId' | 'completionTokenIds'> &
  (Pick<TurnRecord, 'promptTokenIds'> | Pick<TurnStep, 'promptStep'>)

interface TurnSequence {
  readonly prompt: TokenNode
  readonly promptLength: number
  /** Prompt and completion. */
  readonly tokens: TokenNode
  readonly length: number
}

/** The token ids of a session's turns, as nodes of one tree. */
class TurnSequences {
  readonly #root = TokenNode.root()
  /** The sequence of a turn without exact ids. */
  readonly none: TurnSequence = { prompt: this.#root, promptLength: 0, tokens: this.#root, length: 0 }
  readonly #byTurn = new Map<string, TurnSequence>()

  /**
   * Adds a turn. Every turn must be added, whatever its status, because a later one may be based on it. Copies only new
   * ids.
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
