/**
 * The storage of the messages, tools, params and prompts of requests. A request of a hundred messages repeats
 * ninety-eight recorded ones, so histories form a trie per tree: a request is one node below the longest recorded
 * request that it extends, and each text is stored once per tree. Storage therefore stays small even if an agent edits
 * its first message on every request and thereby starts another history each time. The texts of a text
 * completion's prompt are stored as a list of the same trie.
 */
import { hash as digest } from 'node:crypto'
import { extractBlobs } from './blobs.ts'
import { computeSum, NODE_SUMMED } from './check-sums.ts'
import { createEchoTemplate } from './echo.ts'
import { packRowIds, packText } from './packing.ts'
import type { NewText, RequestTables } from './tables.ts'
import {
  LINK_LENGTH,
  NO_TEXTS,
  type TextListMessage,
  type TextListName,
  type TextListNode,
  type TurnMessage,
} from './turn-message.ts'
import { toCompletion } from './turn-rows.ts'

/** The node of the empty list. */
export const ROOT = NO_TEXTS.node

/**
 * A text and its hash, which is computed once for the row of the text and for the link of the list that ends with it.
 */
interface TextWithHash {
  readonly text: string
  readonly hash: Buffer
}

export class RequestWriter {
  readonly #tables: RequestTables

  constructor(tables: RequestTables) {
    this.#tables = tables
  }

  /** Stores a message list. @returns its position in the trie */
  putMessages(tree: number, messages: TextListMessage): TextListNode {
    return this.#putList(tree, messages, (message, parent) => this.#putMessage(tree, parent, message))
  }

  /**
   * Stores a prompt. The prompt that extends it replaces only the last text, so the others get a separate node, from
   * which the next prompt continues.
   * @returns the position of the prompt, and that of the prompt without its last text
   */
  putPrompt(tree: number, { base, texts }: TextListMessage): { whole: TextListNode; butLast: TextListNode } {
    const butLast = this.#putChunks(tree, { base, texts: texts.slice(0, -1) })
    return { whole: this.#putChunks(tree, { base: butLast, texts: texts.slice(-1) }), butLast }
  }

  /** Stores a batch of a list. The rest of the list is stored later. */
  putTextBatch(tree: number, list: TextListName, texts: TextListMessage): TextListNode {
    return list === 'messages' ? this.putMessages(tree, texts) : this.#putChunks(tree, texts)
  }

  #putChunks(tree: number, chunks: TextListMessage): TextListNode {
    return this.#putList(tree, chunks, (chunk) => this.#putHashed(tree, chunk))
  }

  #putList(
    tree: number,
    { base, texts }: TextListMessage,
    put: (text: TextWithHash, parent: number) => number,
  ): TextListNode {
    if (base.depth > 0 && this.#findNode(tree, base.link)?.id !== base.node)
      throw new Error('the list that a request extends is not stored')
    const hashed = texts.map((text) => ({ text, hash: computeTextHash(text) }))
    const links = computeLinks(hashed, base.link)
    const known = this.#findDeepestStored(tree, links, base)
    const added = hashed.slice(known.depth - base.depth)
    if (added.length === 0) return known
    const rows = added.map((text) => put(text, known.node))
    const packed = packRowIds(rows)
    const [depth, link] = [base.depth + texts.length, links.at(-1)!]
    const row = { tree, parent: known.node, depth, texts: packed }
    const hash = Buffer.from(link, 'latin1')
    const node = this.#tables.addNode({ ...row, hash, sum: computeSum(row, NODE_SUMMED) })
    return { node, depth, link }
  }

  /** Stores the text of tools, or verifies that a row id of tools belongs to the tree. @returns the row id */
  putTools(tree: number, tools: Exclude<TurnMessage['tools'], null>): number {
    if (typeof tools === 'string') return this.putText(tree, tools)
    if (this.#tables.findTreeOfText(tools) !== tree)
      throw new Error('the tools that a request refers to are not stored')
    return tools
  }

  /** Stores a text. @returns its row id */
  putText(tree: number, text: string): number {
    return this.#putHashed(tree, { text, hash: computeTextHash(text) })
  }

  #putHashed(tree: number, { text, hash }: TextWithHash): number {
    return this.#tables.findText(tree, hash) ?? this.#insertFull(tree, hash, text)
  }

  /**
   * Returns the longest prefix of the list that is stored. Searches from the end, because most of the list may be
   * stored already: a client may repeat a request before the writer has replied to the first one.
   */
  #findDeepestStored(tree: number, links: readonly string[], base: TextListNode): TextListNode {
    for (let index = links.length - 1; index >= 0; index -= 1) {
      const node = this.#findNode(tree, links[index]!)
      if (node !== undefined) return { node: node.id, depth: node.depth, link: links[index]! }
    }
    return base
  }

  #findNode(tree: number, link: string): { id: number; depth: number } | undefined {
    return this.#tables.findNode(tree, Buffer.from(link, 'latin1'))
  }

  #putMessage(tree: number, node: number, { text: message, hash }: TextWithHash): number {
    const known = this.#tables.findText(tree, hash)
    if (known !== undefined) return known
    const echo = this.#asEcho(tree, node, message)
    if (echo === undefined) return this.#insertFull(tree, hash, message)
    return this.#tables.addText({ tree, hash, ...echo, blobs: null })
  }

  /** Returns a message as an echo of an earlier completion, if it is one. */
  #asEcho(tree: number, node: number, message: string): Pick<NewText, 'echoOf' | 'body'> | undefined {
    if (!message.includes('"assistant"')) return undefined
    for (const completion of this.#tables.listEchoCandidates(tree, node)) {
      const template = createEchoTemplate(message, toCompletion(completion))
      if (template !== undefined) return { echoOf: completion.id, body: packText(template) }
    }
    return undefined
  }

  #insertFull(tree: number, hash: Buffer, text: string): number {
    const cut = extractBlobs(text)
    if (cut === undefined)
      return this.#tables.addText({ tree, hash, echoOf: null, blobs: null, body: packText(text) })
    const rows = cut.blobs.map((blob) => this.#tables.putBlob(tree, blob))
    const body = JSON.stringify(cut.literals)
    return this.#tables.addText({ tree, hash, echoOf: null, blobs: packRowIds(rows), body })
  }
}

/**
 * Returns the links of `texts`, which follow the text with `link`. Each is the hash of the link before it and the text.
 */
function computeLinks(texts: readonly TextWithHash[], link: string): string[] {
  let previous = link
  return texts.map(({ hash }) => {
    previous = truncateHash(digest('sha256', `${previous}${hash.toString('latin1')}`, 'buffer')).toString(
      'latin1',
    )
    return previous
  })
}

/**
 * Hashes a text. A text with lone surrogates is hashed by another algorithm over UTF-16: in UTF-8 they would all be the
 * same replacement character, and their UTF-16 could equal another text's UTF-8.
 */
export function computeTextHash(text: string): Buffer {
  return truncateHash(
    text.isWellFormed()
      ? digest('sha256', text, 'buffer')
      : digest('sha512', Buffer.from(text, 'utf16le'), 'buffer'),
  )
}

function truncateHash(full: Buffer): Buffer {
  return full.subarray(0, LINK_LENGTH)
}
