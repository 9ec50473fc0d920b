import { getSharedLength } from '../../../protocol/token-ids/token-ids.ts'

/**
 * A radix tree of token sequences: what sequences have in common is stored once, and each sequence is a node, so
 * that equal sequences are the same node and a sequence's prefixes are the node's ancestors. All work is linear in
 * the tokens that go in; what a session takes is its distinct tokens, not the sum of its prompts.
 */
export class TokenNode {
  #parent: TokenNode | undefined
  /** The tokens between the parent and this node; only the root has none. */
  #edge: Int32Array
  readonly #children = new Map<number, TokenNode>()

  private constructor(parent: TokenNode | undefined, edge: Int32Array) {
    this.#parent = parent
    this.#edge = edge
  }

  /** The node of the empty sequence. */
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

  /** The node of this sequence followed by `tokens`, made if need be. Copies what is new; keeps no view. */
  descend(tokens: Int32Array): TokenNode {
    let node: TokenNode = this
    let at = 0
    while (at < tokens.length) {
      const child = node.#children.get(tokens[at]!)
      if (child === undefined) return node.#grow(tokens.slice(at))
      const shared = getSharedLength(child.#edge, tokens.subarray(at))
      node = shared < child.#edge.length ? child.#splitAt(shared) : child
      at += shared
    }
    return node
  }

  /** The node of the first `length` tokens of this sequence, which has `whole`; made if need be. */
  prefix(whole: number, length: number): TokenNode {
    let node: TokenNode = this
    for (let end = whole; end > length; ) {
      const start = end - node.#edge.length
      if (start < length) return node.#splitAt(length - start)
      node = node.#parent!
      end = start
    }
    return node
  }

  /** The whole sequence, which has `length` tokens. */
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

  /** Puts a node in the middle of this one's edge. This one stays the node of its own sequence. */
  #splitAt(length: number): TokenNode {
    const middle = this.#parent!.#grow(this.#edge.subarray(0, length))
    this.#edge = this.#edge.subarray(length)
    this.#parent = middle
    middle.#children.set(this.#edge[0]!, this)
    return middle
  }
}
