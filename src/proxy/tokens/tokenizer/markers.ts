/**
 * Finds markers (fixed strings) in a text that arrives in parts. Each character is processed once, regardless of the
 * number and length of the markers and of how the text is split (Aho and Corasick, 1975).
 */

/** A set of markers, which any number of searches can share. */
export class MarkerSet {
  /** The next node by node and UTF-16 code unit ({@link getEdgeKey}). Node 0 represents the empty prefix. */
  readonly #edges = new Map<number, number>()
  /** Per node: the node of the longest shorter prefix of a marker that is a suffix of the node's prefix. */
  readonly #fallbacks: number[] = [0]
  /** Per node: the length of its prefix. */
  readonly #depths: number[] = [0]
  /** Per node: the longest marker that is a suffix of its prefix. */
  readonly #found: (string | undefined)[] = [undefined]
  readonly #hasEdges: boolean[] = [false]

  constructor(markers: Iterable<string>) {
    for (const marker of markers) if (marker !== '') this.#add(marker)
    this.#linkFallbacks()
  }

  /** Returns the node that follows `node` if the next code unit is `code`. */
  getNextNode(node: number, code: number): number {
    for (let from = node; ; from = this.#fallbacks[from]!) {
      const next = this.#edges.get(getEdgeKey(from, code))
      if (next !== undefined) return next
      if (from === 0) return 0
    }
  }

  /** Returns the longest marker that ends at this node. */
  getMarkerAt(node: number): string | undefined {
    return this.#found[node]
  }

  /** Returns the number of characters before this node that may be the beginning of a marker. */
  getBeginningLength(node: number): number {
    // A complete marker that is not a prefix of a longer one cannot continue, but its suffix may begin another marker.
    return this.#depths[this.#hasEdges[node] ? node : this.#fallbacks[node]!]!
  }

  #add(marker: string): void {
    let node = 0
    for (let index = 0; index < marker.length; index++) {
      const edge = getEdgeKey(node, marker.charCodeAt(index))
      let next = this.#edges.get(edge)
      if (next === undefined) {
        next = this.#depths.push(index + 1) - 1
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

  /** Computes the fallbacks, those of shorter prefixes first, because each fallback depends on shorter ones. */
  #linkFallbacks(): void {
    const byDepth = [...this.#edges].sort(([, a], [, b]) => this.#depths[a]! - this.#depths[b]!)
    for (const [edge, node] of byDepth) {
      const parent = Math.floor(edge / CODES)
      if (parent === 0) continue
      const fallback = this.getNextNode(this.#fallbacks[parent]!, edge % CODES)
      this.#fallbacks[node] = fallback
      this.#found[node] ??= this.#found[fallback]
    }
  }
}

const CODES = 0x10000

function getEdgeKey(node: number, code: number): number {
  return node * CODES + code
}

/** A marker in a text that arrives in parts. */
export interface MarkerMatch {
  marker: string
  /** The index of the marker's end in the last part; the marker may begin in an earlier part. */
  end: number
}

/** A search through a text that arrives in parts. */
export class MarkerSearch {
  readonly #markers: MarkerSet
  #node = 0

  constructor(markers: MarkerSet) {
    this.#markers = markers
  }

  /** Reads `text` from index `from` to the end of the first complete marker, or to the end of the text. */
  read(text: string, from: number): MarkerMatch | undefined {
    for (let index = from; index < text.length; index++) {
      this.#node = this.#markers.getNextNode(this.#node, text.charCodeAt(index))
      const marker = this.#markers.getMarkerAt(this.#node)
      if (marker !== undefined) return { marker, end: index + 1 }
    }
    return undefined
  }

  /** The number of characters at the end of the text so far that may be the beginning of a marker. */
  get pendingLength(): number {
    return this.#markers.getBeginningLength(this.#node)
  }
}
