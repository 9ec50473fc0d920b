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
  readonly rows: readonly ForestRow[]
}

/** A forest of the rows of several sessions. */
export class Forest {
  readonly #roots = TokenNode.root()
  readonly #steps: RowPath[] = []

  /**
   * Adds the rows of a session. Copies only new tokens.
   * @param rows the rows of all turns of the session, none of them truncated
   */
  add(sessionId: string, rows: Iterable<Trajectory>): void {
    const sampled = new Map<string, CompletionNode>()
    for (const row of rows)
      this.#steps.push({
        row: toForestRow(sessionId, row),
        path: findPath(sessionId, row, this.#roots, sampled),
      })
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
    const rows = this.#steps.map(({ row, path }) => {
      let leaf: number | null = null
      for (const { read, sampled } of path) {
        const parent = placeRead(read)
        const { below, ...node } = sampled
        leaf = indices.get(sampled) ?? put(sampled, { parent, ...node })
        indices.set(below, leaf)
      }
      return { ...row, leaf }
    })
    return { nodes, rows }
  }
}

/** A completion before it has an index. A row that trains the turn replaces `turn` and `logprobs`. */
interface CompletionNode extends Omit<CompletionTokens, 'parent' | 'turn' | 'logprobs'> {
  turn: ForestTurn
  logprobs: Float64Array
  /** The root of the tokens that follow the completion. */
  readonly below: TokenNode
}

/** A row, and its path as pairs of read and sampled tokens. */
interface RowPath {
  readonly row: Omit<ForestRow, 'leaf'>
  readonly path: readonly { read: TokenNode; sampled: CompletionNode }[]
}

/** Returns the path of a row, whose nodes are created if they are missing. */
function findPath(
  sessionId: string,
  row: Trajectory,
  roots: TokenNode,
  known: Map<string, CompletionNode>,
): RowPath['path'] {
  if (!row.exact) return []
  const path: { read: TokenNode; sampled: CompletionNode }[] = []
  let read = roots.descend(row.prompt_ids)
  let end = 0
  for (const turn of row.turns) {
    read = read.descend(row.response_ids.subarray(end, turn.start))
    end = turn.end
    const sampled = findCompletionNode(sessionId, turn, row, known)
    path.push({ read, sampled })
    read = sampled.below
  }
  return path
}

/** Returns the node of a turn's completion, which is created if it is missing. */
function findCompletionNode(
  sessionId: string,
  { start, end, engine_requests: requests, ...others }: TurnSpan,
  row: Trajectory,
  known: Map<string, CompletionNode>,
): CompletionNode {
  // Rows may have different numbers of a completion's tokens, because a later prompt may replace its end.
  const key = `${others.turn_id} ${end - start}`
  const offsets = { start: -start, end: end - start }
  const turn = { ...others, ...(requests && { engine_requests: shiftEngineRequests(requests, offsets) }) }
  const before = known.get(key)
  if (before !== undefined && !turn.trained) return before
  const logprobs = row.response_logprobs.slice(start, end)
  if (before !== undefined) return Object.assign(before, { turn, logprobs })
  const ids = row.response_ids.slice(start, end)
  const sampled = { sessionId, ids, turn, logprobs, below: TokenNode.root() }
  known.set(key, sampled)
  return sampled
}

function toForestRow(sessionId: string, row: Trajectory): RowPath['row'] {
  const { prompt_ids, response_ids, response_mask: _mask, response_logprobs: _logprobs, ...rest } = row
  return {
    session_id: sessionId,
    ...rest,
    prompt_tokens: prompt_ids.length,
    response_tokens: response_ids.length,
  }
}
