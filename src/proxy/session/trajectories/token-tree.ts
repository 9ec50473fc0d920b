import { getSharedLength } from '../../../protocol/token-ids/token-ids.ts'

/**
 * A node of a radix tree of token sequences. Common prefixes are stored once. Each node represents the sequence from
 * the root to it, so that equal sequences have the same node, and the prefixes of a sequence are the ancestors of its
 * node. All operations are linear in the number of added tokens; the size of a session is proportional to its distinct
 * tokens, not to the sum of its prompts.
 */
export class TokenNode {
  #parent: TokenNode | undefined
  /** The tokens after the parent's sequence; empty only for the root. */
  #edge: Int32Array
  readonly #children = new Map<number, TokenNode>()

  private constructor(parent: TokenNode | undefined, edge: Int32Array) {
    this.#parent = parent
    this.#edge = edge
  }

  /** Creates a root, the node of the empty sequence. */
  static root(): TokenNode {
    return new TokenNode(undefined, new Int32Array(0))
  }

  get parent(): TokenNode | undefined {
    return this.#parent
  }

  /** The tokens after the parent's sequence. */
  get edge(): Int32Array {
    return this.#edge
  }

  /**
   * Returns the node of this sequence followed by `tokens`. It is created if it is missing, with a copy of the new
   * tokens.
   */
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

  /**
   * Returns the node of the first `length` tokens of this sequence, which is created if it is missing.
   * @param full the length of this sequence
   */
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

  /** Returns the tokens of this sequence. @param length the length of the sequence */
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

  /** Inserts a node after `length` tokens of this node's edge. This node still represents the same sequence. */
  #splitAt(length: number): TokenNode {
    const middle = this.#parent!.#grow(this.#edge.subarray(0, length))
    this.#edge = this.#edge.subarray(length)
    this.#parent = middle
    middle.#children.set(this.#edge[0]!, this)
    return middle
  }
}
