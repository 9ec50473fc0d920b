/** How the turns of a session hang together, judged by their token ids alone. */
import type { TurnRecord, TurnStep } from '../../store/port/turn-store.ts'
import type { AgentRole } from '../roles/agent-role.ts'
import { TokenNode } from './token-tree.ts'

/** What of a turn matters to training. */
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
  TurnIds & {
    /** That the agent asked for; null: it named none; undefined: the session's policy has overridden it. */
    readonly chosenModel?: string | null | undefined
  }

/** A completed turn in the tree. Its prompt is not kept but read from the token tree when a row needs it. */
export interface TurnNode extends Omit<TrainableTurn, 'completionTokenIds'> {
  readonly line: AgentRole
  readonly parent: TurnNode | undefined
  hasChildren: boolean
  readonly promptLength: number
  readonly completionLength: number
  readonly prompt: TokenNode
  /** Prompt and completion. */
  readonly tokens: TokenNode
}

/**
 * Built turn by turn, in call order. A turn's parent is the deepest earlier turn whose prompt and completion together
 * are a prefix of its prompt.
 *
 * - Of several turns with equal prompt and equal completion, the latest one without a child gets the child, or the
 *   latest of all: parallel samples that came out the same are continued one each.
 * - A client's retry has the parent of the turn that it repeats, if that one was answered.
 * - A turn that the agent asked another model for continues none of that one's: one row would train both as one.
 * - A turn without exact ids is on its own: whether it continues another one, or is continued, would be a guess.
 */
export class TurnTree {
  readonly #sequences = new TurnSequences()
  readonly #turns: TurnNode[] = []
  readonly #byId = new Map<string, TurnNode>()
  readonly #byTokens = new Map<TokenNode, TurnNode[]>()

  /** Takes the ids of every turn, whether or not it is added then; copies what is new of them. */
  read(turn: TurnIds): TurnSequence {
    return this.#sequences.add(turn)
  }

  /**
   * The turn must be completed. Keeps its logprobs.
   * @param sequence what {@link read} gave of it
   * @param repeats the id of the turn that this one is a retry of
   */
  add(turn: TrainableTurn, sequence: TurnSequence, line: AgentRole, repeats?: string): void {
    const node = turn.exact
      ? this.#addExact(turn, sequence, line, repeats)
      : createNode(turn, this.#sequences.none, line, undefined)
    this.#turns.push(node)
    this.#byId.set(turn.turnId, node)
  }

  /** Whether something goes on from the turn. */
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
    // The same request may have become another prompt: a template that tells the time.
    const parent = first?.prompt === prompt ? first.parent : this.#deepestWithin(prompt, turn)
    const node = createNode(turn, sequence, line, parent)
    if (parent !== undefined) parent.hasChildren = true
    const equal = this.#byTokens.get(node.tokens)
    if (equal === undefined) this.#byTokens.set(node.tokens, [node])
    else equal.push(node)
    return node
  }

  #deepestWithin(prompt: TokenNode, call: TrainableTurn): TurnNode | undefined {
    for (let at: TokenNode | undefined = prompt; at !== undefined; at = at.parent) {
      const turns = this.#byTokens.get(at)?.filter((turn) => mayContinue(turn, call))
      if (turns?.length) return turns.findLast((turn) => !turn.hasChildren) ?? turns.at(-1)
    }
    return undefined
  }

  /**
   * The last turns of all conversations, in call order. Without a turn that was left out, the one that it went on from
   * is a last one.
   * @param leftOut ids of turns that count for nothing
   */
  leaves(leftOut: ReadonlySet<string>): TurnNode[] {
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

function createNode(
  turn: TrainableTurn,
  { prompt, promptLength, tokens, length }: TurnSequence,
  line: AgentRole,
  parent: TurnNode | undefined,
): TurnNode {
  // Field by field: what is added may be a whole record, and the messages of ten thousand of them fill the memory.
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
    chosenModel: turn.chosenModel,
    parent,
    hasChildren: false,
    promptLength,
    completionLength: length - promptLength,
    prompt,
    tokens,
  }
}

type Chosen = Pick<TrainableTurn, 'chosenModel'>

function mayContinue({ chosenModel: before }: Chosen, { chosenModel: now }: Chosen): boolean {
  return before === undefined || now === undefined || before === now
}

/** A turn's ids: its prompt whole, or as what it adds to an earlier turn. */
type TurnIds = Pick<TurnRecord, 'turnId' | 'completionTokenIds'> &
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
  /** Of a turn without exact ids. */
  readonly none: TurnSequence = { prompt: this.#root, promptLength: 0, tokens: this.#root, length: 0 }
  readonly #byTurn = new Map<string, TurnSequence>()

  /** Takes all turns of a reading, whatever their status: any may be the base of a later one. Copies what is new. */
  add(turn: TurnIds): TurnSequence {
    const { base, shared, rest } = 'promptStep' in turn ? turn.promptStep : wholeStep(turn.promptTokenIds)
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
    return found.tokens.prefix(found.length, shared)
  }
}

function wholeStep(promptTokenIds: Int32Array): TurnStep['promptStep'] {
  return { base: null, shared: 0, rest: promptTokenIds }
}
