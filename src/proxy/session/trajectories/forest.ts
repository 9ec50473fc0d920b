/**
 * Represents rows as a forest: common prefixes of rows are stored once, for trainers that pack prefixes (tree
 * attention) and for smaller responses. Each completion is a separate node, even if two samples of one prompt have
 * equal tokens. Tokens that were read are shared if equal: prompts, also between sessions, and the tokens between two
 * completions.
 */
import { shiftEngineRequests } from './engine-requests.ts'
import { TokenNode } from './token-tree.ts'
import type { Trajectory, TurnSpan } from './trajectories.ts'

/** Tokens that the model read. */
export interface PromptTokens {
  /** Index of the parent node; null: none. */
  readonly parent: number | null
  readonly ids: Int32Array
}

/** Tokens that a turn sampled. */
export interface CompletionTokens extends PromptTokens {
  readonly sessionId: string
  readonly turn: ForestTurn
  /** 0.0 where no row trains the token. */
  readonly logprobs: Float64Array
}

/** A turn's span without its offsets; those of engine requests count from the node. `trained`: a row trains it. */
type ForestTurn = Omit<TurnSpan, 'start' | 'end'>

/** A row is the path from a root to its leaf. */
export interface ForestRow extends Omit<Trajectory, RowArrays> {
  readonly session_id: string
  /** Index of the last node; null if the row has no tokens. */
  readonly leaf: number | null
  /** Number of the path's tokens that are the prompt. */
  readonly prompt_tokens: number
  readonly response_tokens: number
}

type RowArrays = 'prompt_ids' | 'response_ids' | 'response_mask' | 'response_logprobs'

interface ForestLayout {
  /** Nodes; each follows its parent. */
  readonly nodes: readonly (PromptTokens | CompletionTokens)[]
  readonly rows: readonly ForestRow[]
}

export class Forest {
  readonly #roots = TokenNode.root()
  readonly #steps: RowPath[] = []

  /**
   * Adds the rows of a session. Copies only new tokens.
   * @param rows rows of all turns of the session, none of them truncated
   */
  add(sessionId: string, rows: Iterable<Trajectory>): void {
    const sampled = new Map<string, CompletionNode>()
    for (const row of rows)
      this.#steps.push({
        row: toForestRow(sessionId, row),
        path: findPath(sessionId, row, this.#roots, sampled),
      })
  }

  /** Returns the layout. All rows must have been added, because each may split a prompt. */
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

interface CompletionNode extends Omit<CompletionTokens, 'parent' | 'turn' | 'logprobs'> {
  turn: ForestTurn
  logprobs: Float64Array
  /** Tokens that were read after it. */
  readonly below: TokenNode
}

interface RowPath {
  readonly row: Omit<ForestRow, 'leaf'>
  readonly path: readonly { read: TokenNode; sampled: CompletionNode }[]
}

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
    const sampled = findSampledSpans(sessionId, turn, row, known)
    path.push({ read, sampled })
    read = sampled.below
  }
  return path
}

function findSampledSpans(
  sessionId: string,
  { start, end, engine_requests: requests, ...others }: TurnSpan,
  row: Trajectory,
  known: Map<string, CompletionNode>,
): CompletionNode {
  // If a later prompt replaces the end of a completion, the rows of other prompts have more of its tokens.
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
