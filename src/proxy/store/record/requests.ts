/**
 * The messages, tools, params and prompts of requests. A request of a hundred messages repeats ninety-eight that are on
 * record: histories form a trie per tree, in which a request is one node below the longest recorded request that it
 * extends, and each text is stored once per tree. So it stays small even where an agent edits its first message on
 * every call and thereby starts a new history each time. The pieces of a completion's prompt are such a list as well.
 */
import { hash as digest } from 'node:crypto'
import { cutBlobs } from './blobs.ts'
import { NODE_SUMMED, sumOf } from './check-sums.ts'
import { echoTemplate } from './echo.ts'
import { packIds, packText } from './packing.ts'
import {
  LINK_LENGTH,
  type ListName,
  NO_TEXTS,
  type RecordedTexts,
  type SentTexts,
  type SentTurn,
} from './sent-turn.ts'
import type { NewText, RequestTables } from './tables.ts'
import { toCompletion } from './turn-rows.ts'

/** The node of the empty list. */
export const ROOT = NO_TEXTS.node

/** A text is hashed once, for its own row and for that of the list that it ends. */
interface HashedText {
  readonly text: string
  readonly hash: Buffer
}

export class RequestWriter {
  readonly #tables: RequestTables

  constructor(tables: RequestTables) {
    this.#tables = tables
  }

  /** @returns the message list as it is on record */
  putMessages(tree: number, messages: SentTexts): RecordedTexts {
    return this.#putList(tree, messages, (message, parent) => this.#putMessage(tree, parent, message))
  }

  /**
   * The last piece is the only one that differs in the prompt that goes on from here, so that the others get a node of
   * their own, for it to be below.
   * @returns the prompt as it is on record, and without its last piece
   */
  putPrompt(tree: number, { base, texts }: SentTexts): { whole: RecordedTexts; butLast: RecordedTexts } {
    const butLast = this.#putPieces(tree, { base, texts: texts.slice(0, -1) })
    return { whole: this.#putPieces(tree, { base: butLast, texts: texts.slice(-1) }), butLast }
  }

  /** Of a list whose end comes later. */
  putStretch(tree: number, list: ListName, texts: SentTexts): RecordedTexts {
    return list === 'messages' ? this.putMessages(tree, texts) : this.#putPieces(tree, texts)
  }

  #putPieces(tree: number, pieces: SentTexts): RecordedTexts {
    return this.#putList(tree, pieces, (piece) => this.#putHashed(tree, piece))
  }

  #putList(
    tree: number,
    { base, texts }: SentTexts,
    put: (text: HashedText, parent: number) => number,
  ): RecordedTexts {
    if (base.depth > 0 && this.#nodeAt(tree, base.link)?.id !== base.node)
      throw new Error('the request that a request repeats is not on record')
    const hashed = texts.map((text) => ({ text, hash: hashOf(text) }))
    const links = linksOf(hashed, base.link)
    const known = this.#deepestKnown(tree, links, base)
    const added = hashed.slice(known.depth - base.depth)
    if (added.length === 0) return known
    const rows = added.map((text) => put(text, known.node))
    const packed = packIds(Int32Array.from(rows))
    const [depth, link] = [base.depth + texts.length, links.at(-1)!]
    const row = { tree, parent: known.node, depth, texts: packed }
    const hash = Buffer.from(link, 'latin1')
    const node = this.#tables.addNode({ ...row, hash, sum: sumOf(row, NODE_SUMMED) })
    return { node, depth, link }
  }

  /** @returns the row of the tools */
  putTools(tree: number, tools: Exclude<SentTurn['tools'], null>): number {
    if (typeof tools === 'string') return this.putText(tree, tools)
    if (this.#tables.treeOfText(tools) !== tree)
      throw new Error('the tools that a request repeats are not on record')
    return tools
  }

  /** @returns the text's row */
  putText(tree: number, text: string): number {
    return this.#putHashed(tree, { text, hash: hashOf(text) })
  }

  #putHashed(tree: number, { text, hash }: HashedText): number {
    return this.#tables.findText(tree, hash) ?? this.#insertWhole(tree, hash, text)
  }

  /** From the end: a request may be sent again before it is known to be on record. */
  #deepestKnown(tree: number, links: readonly string[], base: RecordedTexts): RecordedTexts {
    for (let place = links.length - 1; place >= 0; place -= 1) {
      const node = this.#nodeAt(tree, links[place]!)
      if (node !== undefined) return { node: node.id, depth: node.depth, link: links[place]! }
    }
    return base
  }

  #nodeAt(tree: number, link: string): { id: number; depth: number } | undefined {
    return this.#tables.findNode(tree, Buffer.from(link, 'latin1'))
  }

  #putMessage(tree: number, node: number, { text: message, hash }: HashedText): number {
    const known = this.#tables.findText(tree, hash)
    if (known !== undefined) return known
    const echo = this.#asEcho(tree, node, message)
    if (echo === undefined) return this.#insertWhole(tree, hash, message)
    return this.#tables.addText({ tree, hash, ...echo, blobs: null })
  }

  /** A message as what it adds to the answer that it echoes, if it echoes one. */
  #asEcho(tree: number, node: number, message: string): Pick<NewText, 'echoOf' | 'body'> | undefined {
    if (!message.includes('"assistant"')) return undefined
    for (const answer of this.#tables.answers(tree, node)) {
      const template = echoTemplate(message, toCompletion(answer))
      if (template !== undefined) return { echoOf: answer.id, body: packText(template) }
    }
    return undefined
  }

  #insertWhole(tree: number, hash: Buffer, text: string): number {
    const cut = cutBlobs(text)
    if (cut === undefined)
      return this.#tables.addText({ tree, hash, echoOf: null, blobs: null, body: packText(text) })
    const rows = Int32Array.from(cut.blobs, (blob) => this.#tables.putBlob(tree, blob))
    const body = JSON.stringify(cut.literals)
    return this.#tables.addText({ tree, hash, echoOf: null, blobs: packIds(rows), body })
  }
}

/** The links of texts that come after that of `link`. */
function linksOf(texts: readonly HashedText[], link: string): string[] {
  let above = link
  return texts.map(({ hash }) => {
    above = shortened(digest('sha256', `${above}${hash.toString('latin1')}`, 'buffer')).toString('latin1')
    return above
  })
}

/**
 * Texts with lone surrogates are hashed by another algorithm over UTF-16: in UTF-8 they would all be the same
 * replacement character, and their UTF-16 could be another text's UTF-8.
 */
export function hashOf(text: string): Buffer {
  return shortened(
    text.isWellFormed()
      ? digest('sha256', text, 'buffer')
      : digest('sha512', Buffer.from(text, 'utf16le'), 'buffer'),
  )
}

function shortened(whole: Buffer): Buffer {
  return whole.subarray(0, LINK_LENGTH)
}
