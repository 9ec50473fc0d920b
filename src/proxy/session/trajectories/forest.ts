/**
 * Represents rows as a forest, in which common prefixes of rows are stored once: for trainers that pack prefixes (tree
 * attention), and for smaller responses. Each completion is a separate node, even if two samples of one prompt have
 * equal tokens. Equal tokens that were not sampled share nodes: prompts, also of different sessions, and the tokens
 * between two completions.
 */
import { shiftEngineRequests } from './engine-requests.ts'
import { TokenNode } from './token-tree.ts'
import type { Trajectory, TurnSpan } from './trajectories.ts'

/** A node of tokens that the model read. */
export interface PromptTokens {
  /** The index of the parent node; null: it is a root. */
  readonly parent: number | null
  readonly ids: Int32Array
}

/** A node of tokens that a turn sampled. */
export interface CompletionTokens extends PromptTokens {
  readonly sessionId: string
  readonly turn: ForestTurn
  /** The logprobs of the tokens; 0 for a token that no row trains. */
  readonly logprobs: Float64Array
}

/**
 * A turn of a row without its span; the offsets of its engine requests are relative to the node. `trained`: whether a
 * row trains it.
 */
type ForestTurn = Omit<TurnSpan, 'start' | 'end'>

/** A row, whose tokens are the path from a root to its leaf. */
export interface ForestRow extends Omit<Trajectory, RowArrays> {
  readonly session_id: string
  /** The index of the last node; null if the row has no exact tokens. */
  readonly leaf: number | null
  /** The number of the path's tokens that are the prompt; the others are the response. */
  readonly prompt_tokens: number
  readonly response_tokens: number
}

/** The fields of a row that the nodes replace. */
type RowArrays = 'prompt_ids' | 'response_ids' | 'response_mask' | 'response_logprobs'

/** The nodes and rows in serializable form. */
interface ForestLayout {
  /** The nodes; each follows its parent. */
  readonly nodes: readonly (PromptTokens | CompletionTokens)[]
  /** The rows. Each is created when it is iterated, because together the rows repeat each turn many times. */
  readonly rows: Iterable<ForestRow>
}

/** A forest of the rows of several sessions. */
export class Forest {
  readonly #roots = TokenNode.root()
  readonly #paths: RowPath[] = []
  /** The completions by session id and by turn. */
  readonly #sampled = new Map<string, Map<string, CompletionNode>>()

  /**
   * Adds a row. Copies only new tokens. All rows of all turns of a session must be added, none of them truncated.
   */
  add(sessionId: string, row: Trajectory): void {
    const sampled = this.#sampled.get(sessionId) ?? new Map<string, CompletionNode>()
    this.#sampled.set(sessionId, sampled)
    const path: RowPath = { row: toForestRow(sessionId, row), last: undefined, turns: row.turns }
    this.#paths.push(row.exact ? addPath(path, row, this.#roots, sampled) : path)
  }

  /** Returns the layout. All rows must have been added, because a row may split a node of an earlier one. */
  createLayout(): ForestLayout {
    const nodes: (PromptTokens | CompletionTokens)[] = []
    const indices = new Map<TokenNode | CompletionNode, number | null>([[this.#roots, null]])
    const put = (key: TokenNode | CompletionNode, node: PromptTokens | CompletionTokens): number => {
      indices.set(key, nodes.length)
      return nodes.push(node) - 1
    }
    const placeRead = (node: TokenNode): number | null => {
      const way: TokenNode[] = []
      let at = node
      for (; !indices.has(at); at = at.parent!) way.push(at)
      let parent = indices.get(at)!
      for (const next of way.reverse()) parent = put(next, { parent, ids: next.edge })
      return parent
    }
    for (const { last } of this.#paths)
      for (const sampled of listPath(last, (node) => indices.has(node))) {
        const { sessionId, ids, turn, logprobs } = sampled
        const node = { parent: placeRead(sampled.read), sessionId, ids, turn, logprobs }
        indices.set(sampled.below, put(sampled, node))
      }
    return { nodes, rows: createRows(this.#paths, indices) }
  }
}

/** A completion before it has an index. A row that trains the turn replaces `turn` and `logprobs`. */
interface CompletionNode extends Omit<CompletionTokens, 'parent' | 'turn' | 'logprobs'> {
  turn: ForestTurn
  logprobs: Float64Array
  /** The row that trains the turn; undefined: none. */
  trainedBy: RowPath | undefined
  /** The completion before it, the same in all rows; undefined: it is the first. */
  readonly before: CompletionNode | undefined
  /** The tokens between the two. */
  readonly read: TokenNode
  /** The offset of the completion in the responses of rows. */
  readonly start: number
  /** The root of the tokens that follow the completion. */
  readonly below: TokenNode
}

/** A row, and its path. */
interface RowPath {
  readonly row: Omit<ForestRow, 'leaf' | 'turns'>
  /** The last completion; undefined if the row has no exact tokens. */
  readonly last: CompletionNode | undefined
  /** The turns of a row that has no exact tokens. The turns of others are created from their completions. */
  readonly turns: readonly TurnSpan[]
}

/** Returns a path with the completions of a row, which are created if they are missing. */
function addPath(
  { row: shown }: RowPath,
  row: Trajectory,
  roots: TokenNode,
  known: Map<string, CompletionNode>,
): RowPath {
  const path: { -readonly [Key in keyof RowPath]: RowPath[Key] } = { row: shown, last: undefined, turns: [] }
  let read = roots.descend(row.prompt_ids)
  let end = 0
  for (const turn of row.turns) {
    read = read.descend(row.response_ids.subarray(end, turn.start))
    end = turn.end
    // Rows may have different numbers of a completion's tokens, because a later prompt may replace its end.
    const key = `${turn.turn_id} ${end - turn.start}`
    const sampled = known.get(key) ?? createCompletionNode(shown.session_id, turn, row, path.last, read)
    known.set(key, sampled)
    if (turn.trained)
      Object.assign(sampled, {
        turn: toForestTurn(turn),
        logprobs: row.response_logprobs.slice(turn.start, end),
        trainedBy: path,
      })
    path.last = sampled
    read = sampled.below
  }
  return path
}

function createCompletionNode(
  sessionId: string,
  turn: TurnSpan,
  row: Trajectory,
  before: CompletionNode | undefined,
  read: TokenNode,
): CompletionNode {
  const { start, end } = turn
  return {
    ...{ sessionId, turn: toForestTurn(turn), trainedBy: undefined, before, read, start },
    ids: row.response_ids.slice(start, end),
    logprobs: row.response_logprobs.slice(start, end),
    below: TokenNode.root(),
  }
}

function toForestTurn({ start, end, engine_requests: requests, ...others }: TurnSpan): ForestTurn {
  const offsets = { start: -start, end: end - start }
  return { ...others, ...(requests && { engine_requests: shiftEngineRequests(requests, offsets) }) }
}

/** Returns the completions of a path in their order, beginning after the last one that is known. */
function listPath(
  last: CompletionNode | undefined,
  isKnown: (node: CompletionNode) => boolean = () => false,
): CompletionNode[] {
  const path: CompletionNode[] = []
  for (let at = last; at !== undefined && !isKnown(at); at = at.before) path.push(at)
  return path.reverse()
}

function* createRows(
  paths: readonly RowPath[],
  indices: ReadonlyMap<CompletionNode | TokenNode, number | null>,
): Generator<ForestRow> {
  for (const path of paths) {
    const { row, last } = path
    const turns = last === undefined ? path.turns : listPath(last).map((node) => toTurnSpan(node, path))
    yield { ...row, turns, leaf: last === undefined ? null : indices.get(last)! }
  }
}

/** Returns the turn of a completion, with its span in a row. */
function toTurnSpan({ turn, ids, start, trainedBy }: CompletionNode, path: RowPath): TurnSpan {
  const { engine_requests: requests, ...others } = turn
  const span = { start, end: start + ids.length }
  return {
    ...others,
    ...span,
    trained: trainedBy === path,
    ...(requests && { engine_requests: shiftEngineRequests(requests, span) }),
  }
}

function toForestRow(sessionId: string, row: Trajectory): RowPath['row'] {
  const { turns: _turns, prompt_ids, response_ids, response_mask: _mask, ...rest } = row
  const { response_logprobs: _logprobs, ...others } = rest
  return {
    session_id: sessionId,
    ...others,
    prompt_tokens: prompt_ids.length,
    response_tokens: response_ids.length,
  }
}
