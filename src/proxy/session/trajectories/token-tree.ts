import { getSharedLength } from '../../../protocol/token-ids/token-ids.ts'

/**
 * A radix tree of token sequences. Common prefixes are stored once and each sequence is a node, so that equal sequences
 * are the same node and a sequence's prefixes are the node's ancestors. All operations are linear in the tokens
 * added; the memory of a session is proportional to its distinct tokens, not to the sum of its prompts.
 */
export class TokenNode {
  #parent: TokenNode | undefined
  /** The tokens between the parent and this node; empty only for the root. */
  #edge: Int32Array
  readonly #children = new Map<number, TokenNode>()

  private constructor(parent: TokenNode | undefined, edge: Int32Array) {
    this.#parent = parent
    this.#edge = edge
  }

  /** Creates the node of the empty sequence. */
  static root(): TokenNode {
    return new TokenNode(undefined, new Int32Array(0))
  }

  get parent(): TokenNode | undefined {
    return this.#parent
  }

  /** The tokens between the parent and this node. */
  get edge(): Int32Array {
    return this.#edge
  }

  /** Returns the node of this sequence followed by `tokens`. Creates it if missing, with a copy of the new tokens. */
  descend(tokens: Int32Array): TokenNode {
    let node: TokenNode = this
    let index = 0
    while (index < tokens.length) {
      const child = node.#children.get(tokens[index]!)
      if (child === undefined) return node.#grow(tokens.slice(index))
      const shared = getSharedLength(child.#edge, tokens.subarray(index))
      node = shared < child.#edge.length ? child.#splitAt(shared) : child
      index += shared
    }
    return node
  }

  /** Returns or creates the node of the first `length` tokens of this sequence, whose length is `full`. */
  getPrefix(full: number, length: number): TokenNode {
    let node: TokenNode = this
    for (let end = full; end > length; ) {
      const start = end - node.#edge.length
      if (start < length) return node.#splitAt(length - start)
      node = node.#parent!
      end = start
    }
    return node
  }

  /** Returns the complete sequence, whose length is `length`. */
  read(length: number): Int32Array {
    const tokens = new Int32Array(length)
    let end = length
    for (let node: TokenNode | undefined = this; node !== undefined; node = node.#parent) {
      end -= node.#edge.length
      tokens.set(node.#edge, end)
    }
    return tokens
  }

  #grow(edge: Int32Array): TokenNode {
    const child = new TokenNode(this, edge)
    this.#children.set(edge[0]!, child)
    return child
  }

  /** Inserts a node into this node's edge. This node still represents its own sequence. */
  #splitAt(length: number): TokenNode {
    const middle = this.#parent!.#grow(this.#edge.subarray(0, length))
    this.#edge = this.#edge.subarray(length)
    this.#parent = middle
    middle.#children.set(this.#edge[0]!, this)
    return middle
  }
}
