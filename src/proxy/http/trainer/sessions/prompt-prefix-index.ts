import type { TurnRecord } from '../../../store/port/turn-store.ts'

/** A node in the tree of prompts. Its prompts begin with the same complete chunks. */
interface PromptNode {
  readonly next: Map<string, PromptNode>
  /** The last chunks of the prompts that end at this node, with the latest turn of each. */
  readonly ends: Map<string, string>
}

/** The maximum number of stored ends per node. More are rare: agents that sample repeatedly send the same prompt. */
const MAX_ENDS = 16

/** The JSON texts of empty prompts without their last character: every prompt begins with one of them. */
const EMPTY = new Set(['[', '"'])

/** The position in a list of chunks at which the prompt of an earlier turn ends. */
interface CommonPrefix {
  readonly turnId: string
  readonly position: number
  /** The number of characters in the chunk at `position`. */
  readonly length: number
}

/**
 * An index of the prompts of a session's turns, which finds the longest earlier prompt that is a prefix of a new one,
 * so that the new one can be shown without it.
 */
export class PromptPrefixIndex {
  readonly #first = createNode()

  /**
   * Adds the prompt of a turn.
   * @returns the turn with the longest earlier prompt that is a prefix, the latest of several, and the rest of the new
   *   prompt as chunks
   */
  add({ turnId, promptPieces: chunks }: Pick<TurnRecord, 'turnId' | 'promptPieces'>) {
    let node = this.#first
    let known: CommonPrefix | undefined
    for (const [position, chunk] of chunks.entries()) {
      known = findLongestEnd(node, chunks, position) ?? known
      if (position === chunks.length - 1) storeEnd(node, chunk, turnId)
      else node = getNextNode(node, chunk)
    }
    return known
      ? { turnId: known.turnId, pieces: [getTextAfter(known, chunks)] }
      : { turnId: null, pieces: chunks }
  }
}

function createNode(): PromptNode {
  return { next: new Map(), ends: new Map() }
}

function getNextNode(node: PromptNode, chunk: string): PromptNode {
  const existing = node.next.get(chunk)
  if (existing !== undefined) return existing
  const added = createNode()
  node.next.set(chunk, added)
  return added
}

function storeEnd({ ends }: PromptNode, end: string, turnId: string): void {
  if (EMPTY.has(end)) return
  // Deleting the entry first moves it to the end, so that the least recently used one is evicted.
  ends.delete(end)
  ends.set(end, turnId)
  if (ends.size > MAX_ENDS) ends.delete(ends.keys().next().value!)
}

function findLongestEnd(
  { ends }: PromptNode,
  chunks: readonly string[],
  position: number,
): CommonPrefix | undefined {
  const chunk = chunks[position]!
  let longest: CommonPrefix | undefined
  for (const [{ length }, turnId] of [...ends].filter(([end]) => chunk.startsWith(end))) {
    // In a list of ids, 12 is not a prefix of 123.
    const next = chunk[length] ?? chunks[position + 1]?.[0] ?? ','
    const isComplete = !chunks[0]!.startsWith('[') || next === ','
    if (isComplete && length > (longest?.length ?? 0)) longest = { turnId, position, length }
  }
  return longest
}

function getTextAfter({ position, length }: CommonPrefix, chunks: readonly string[]): string {
  const text = chunks.slice(position).join('').slice(length)
  return chunks[0]!.startsWith('[') ? `[${text.replace(/^,/, '')}` : `"${text}`
}
