import type { TurnRecord } from '../../../store/port/turn-store.ts'

/** A place in the tree of prompts: those that begin with the same whole pieces. */
interface PromptNode {
  readonly next: Map<string, PromptNode>
  /** Last pieces of prompts that end here, and the latest turn that has each. */
  readonly ends: Map<string, string>
}

/** Ends that are remembered of each place: agents that sample many answers there send the very same prompt. */
const MAX_ENDS = 16

/** The JSON text of an empty prompt without its last character: every other one begins with it. */
const EMPTY = new Set(['[', '"'])

/** Where in a list of pieces an earlier turn's prompt ends. */
interface SharedPrefix {
  readonly turnId: string
  readonly position: number
  /** In the piece at `position`. */
  readonly length: number
}

/** Tells which earlier turn's whole prompt a completion's prompt begins with, so that it can be shown without it. */
export class NewPrompts {
  readonly #first = newPlace()

  /** @returns the turn of the longest such prompt (the latest of several), and what comes after it, as pieces of a prompt */
  add({ turnId, promptPieces: pieces }: Pick<TurnRecord, 'turnId' | 'promptPieces'>) {
    let place = this.#first
    let known: SharedPrefix | undefined
    for (const [position, piece] of pieces.entries()) {
      known = longestEnd(place, pieces, position) ?? known
      if (position === pieces.length - 1) remember(place, piece, turnId)
      else place = nextPlace(place, piece)
    }
    return known ? { turnId: known.turnId, pieces: [textAfter(known, pieces)] } : { turnId: null, pieces }
  }
}

function newPlace(): PromptNode {
  return { next: new Map(), ends: new Map() }
}

function nextPlace(place: PromptNode, piece: string): PromptNode {
  const known = place.next.get(piece)
  if (known !== undefined) return known
  const added = newPlace()
  place.next.set(piece, added)
  return added
}

function remember({ ends }: PromptNode, end: string, turnId: string): void {
  if (EMPTY.has(end)) return
  // Deleted first, so that the latest comes last.
  ends.delete(end)
  ends.set(end, turnId)
  if (ends.size > MAX_ENDS) ends.delete(ends.keys().next().value!)
}

function longestEnd(
  { ends }: PromptNode,
  pieces: readonly string[],
  position: number,
): SharedPrefix | undefined {
  const piece = pieces[position]!
  let longest: SharedPrefix | undefined
  for (const [{ length }, turnId] of [...ends].filter(([end]) => piece.startsWith(end))) {
    // In a list of ids, 12 is no beginning of 123.
    const next = piece[length] ?? pieces[position + 1]?.[0] ?? ','
    const isWhole = !pieces[0]!.startsWith('[') || next === ','
    if (isWhole && length > (longest?.length ?? 0)) longest = { turnId, position, length }
  }
  return longest
}

function textAfter({ position, length }: SharedPrefix, pieces: readonly string[]): string {
  const text = pieces.slice(position).join('').slice(length)
  return pieces[0]!.startsWith('[') ? `[${text.replace(/^,/, '')}` : `"${text}`
}
