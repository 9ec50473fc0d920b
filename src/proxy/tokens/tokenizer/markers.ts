/**
 * Finding fixed strings in a text that is still being written: each character is looked at once, however many
 * markers there are, however long they are and however the text is cut (Aho and Corasick, 1975).
 */

/** Markers that are searched for together. It can serve any number of searches. */
export class MarkerSet {
  /** From a node and a UTF-16 code to a node. Node 0 stands for no beginning of any marker. */
  readonly #edges = new Map<number, number>()
  /** Per node: the longest beginning of a marker that its own text ends with. */
  readonly #fallbacks: number[] = [0]
  /** Per node: how many characters led to it. */
  readonly #depths: number[] = [0]
  /** Per node: the longest marker that ends there. */
  readonly #found: (string | undefined)[] = [undefined]
  readonly #hasEdges: boolean[] = [false]

  constructor(markers: Iterable<string>) {
    for (const marker of markers) if (marker !== '') this.#add(marker)
    this.#linkFallbacks()
  }

  /** The node that `code` leads to. */
  step(node: number, code: number): number {
    for (let from = node; ; from = this.#fallbacks[from]!) {
      const next = this.#edges.get(getEdgeKey(from, code))
      if (next !== undefined) return next
      if (from === 0) return 0
    }
  }

  /** The marker that is complete at this node; of several that end together the longest. */
  foundAt(node: number): string | undefined {
    return this.#found[node]
  }

  /** How many characters that led to this node may be the beginning of a marker. */
  beginningLength(node: number): number {
    // A marker that nothing longer begins with is no beginning any more, but its end may be one.
    return this.#depths[this.#hasEdges[node] ? node : this.#fallbacks[node]!]!
  }

  #add(marker: string): void {
    let node = 0
    for (let at = 0; at < marker.length; at++) {
      const edge = getEdgeKey(node, marker.charCodeAt(at))
      let next = this.#edges.get(edge)
      if (next === undefined) {
        next = this.#depths.push(at + 1) - 1
        this.#edges.set(edge, next)
        this.#hasEdges[node] = true
        this.#hasEdges.push(false)
        this.#fallbacks.push(0)
        this.#found.push(undefined)
      }
      node = next
    }
    this.#found[node] = marker
  }

  /** Shorter beginnings first: each fallback is a shorter one. */
  #linkFallbacks(): void {
    const byDepth = [...this.#edges].sort(([, a], [, b]) => this.#depths[a]! - this.#depths[b]!)
    for (const [edge, node] of byDepth) {
      const parent = Math.floor(edge / CODES)
      if (parent === 0) continue
      const fallback = this.step(this.#fallbacks[parent]!, edge % CODES)
      this.#fallbacks[node] = fallback
      this.#found[node] ??= this.#found[fallback]
    }
  }
}

const CODES = 0x10000

function getEdgeKey(node: number, code: number): number {
  return node * CODES + code
}

export interface MarkerMatch {
  marker: string
  /** Where it ends in the text that was read; it may have begun in an earlier one. */
  end: number
}

/** One search through a text that comes in pieces. */
export class MarkerSearch {
  readonly #markers: MarkerSet
  #node = 0

  constructor(markers: MarkerSet) {
    this.#markers = markers
  }

  /** Reads `text` from index `from` up to the first marker that is complete, else to its end. */
  read(text: string, from: number): MarkerMatch | undefined {
    for (let at = from; at < text.length; at++) {
      this.#node = this.#markers.step(this.#node, text.charCodeAt(at))
      const marker = this.#markers.foundAt(this.#node)
      if (marker !== undefined) return { marker, end: at + 1 }
    }
    return undefined
  }

  /** How many of the characters that were read last may be the beginning of a marker. */
  get heldLength(): number {
    return this.#markers.beginningLength(this.#node)
  }
}
