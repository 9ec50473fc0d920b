/**
 * The messages, tools, params and prompts of requests. A request of a hundred messages repeats ninety-eight that are on
 * record: histories form a trie per tree, in which a request is one node below the longest recorded request that it
 * extends, and each text is stored once per tree. So it stays small even where an agent edits its first message on
 * every call and thereby starts a new history each time. The pieces of a completion's prompt are such a list as well.
 */
import { hash as digest } from 'node:crypto'
import type Database from 'better-sqlite3'
import { RecentlyUsed } from '../../recently-used.ts'
import { echoTemplate, type StoredCompletion } from './echo.ts'
import { packIds, packText, type StoredText, unpackOptionalText } from './packing.ts'
import { LINK_LENGTH, type SentTexts, type SentTurn } from './sent-turn.ts'

/** The node of the empty list. */
export const ROOT = 0

/** A completion as it stands in `turns`. */
export interface CompletionRow {
  id: number
  completion_text: StoredText | null
  reasoning: StoredText | null
  tool_calls: StoredText | null
}

export function toCompletion(row: CompletionRow): StoredCompletion {
  return {
    completionText: unpackOptionalText(row.completion_text),
    reasoning: unpackOptionalText(row.reasoning),
    toolCalls: unpackOptionalText(row.tool_calls),
  }
}

type NewText = { tree: number; hash: Buffer; echoOf: number | null; body: StoredText }

/** An assistant message is compared with the latest answers to the history before it, and with the session's latest. */
const MAX_ANSWERS = 8

/** For the latest answers of all trees. */
const MAX_ANSWER_CHARS = 8 * 1024 * 1024

interface Answer extends StoredCompletion {
  /** Of the turn. */
  readonly id: number
}

export class RequestWriter {
  /** The latest answer in each tree: what a new assistant message repeats, as a rule. */
  readonly #latestAnswer = new RecentlyUsed<number, Answer>(MAX_ANSWER_CHARS, charsOf)
  readonly #findText: Database.Statement<[number, Buffer], number>
  readonly #addText: Database.Statement<[NewText]>
  readonly #findNode: Database.Statement<[number, Buffer], { id: number; depth: number }>
  readonly #addNode: Database.Statement<[number, number, number, Buffer, Buffer]>
  readonly #answers: Database.Statement<[{ tree: number; node: number }], CompletionRow>

  constructor(db: Database.Database) {
    this.#findText = db
      .prepare<[number, Buffer], number>('SELECT id FROM texts WHERE tree = ? AND hash = ?')
      .pluck()
    this.#addText = db.prepare(
      'INSERT INTO texts (tree, hash, echo_of, body) VALUES (@tree, @hash, @echoOf, @body)',
    )
    this.#findNode = db.prepare('SELECT id, depth FROM nodes WHERE tree = ? AND hash = ?')
    this.#addNode = db.prepare('INSERT INTO nodes (tree, parent, depth, texts, hash) VALUES (?, ?, ?, ?, ?)')
    // The plus signs: a query that is sorted is otherwise planned anew for each new value of a parameter, which takes
    // far longer than the query.
    this.#answers = db.prepare(`
      WITH
        to_this AS (
          SELECT id FROM turns WHERE tree = +@tree AND node = +@node AND tool_calls IS NOT NULL
          ORDER BY id DESC LIMIT ${MAX_ANSWERS}
        ),
        latest AS (
          SELECT id FROM turns WHERE tree = +@tree AND tool_calls IS NOT NULL
          ORDER BY call_index DESC LIMIT ${MAX_ANSWERS}
        )
      SELECT id, completion_text, reasoning, tool_calls FROM turns
      WHERE id IN (SELECT id FROM to_this UNION SELECT id FROM latest)
      ORDER BY id DESC`)
  }

  /** @returns the node of the message list, and the list's whole chain */
  putMessages(tree: number, messages: SentTexts): { node: number; chain: string } {
    return this.#putList(tree, messages, (parent, message) => this.#putMessage(tree, parent, message))
  }

  /**
   * The last piece is the only one that differs in the prompt that goes on from here, so that the others get a node of
   * their own, for it to be below.
   * @returns as {@link putMessages}
   */
  putPrompt(tree: number, pieces: SentTexts): { node: number; chain: string } {
    const put = (_parent: number, piece: string) => this.putText(tree, piece)
    const { chain } = this.#putList(tree, { ...pieces, texts: pieces.texts.slice(0, -1) }, put)
    return this.#putList(tree, { ...pieces, chain }, put)
  }

  #putList(
    tree: number,
    { from, texts, chain: knownChain }: SentTexts,
    put: (parent: number, text: string) => number,
  ): { node: number; chain: string } {
    const chain = knownChain + linksOf(texts.slice(knownChain.length / LINK_LENGTH - from), knownChain)
    const { id: parent, depth } = this.#deepestKnown(tree, chain)
    if (depth < from) throw new Error('the request that a request repeats is not on record')
    const added = texts.slice(depth - from)
    if (added.length === 0) return { node: parent, chain }
    const rows = added.map((text) => put(parent, text))
    const packed = packIds(Int32Array.from(rows))
    const total = depth + added.length
    const node = rowid(this.#addNode.run(tree, parent, total, packed, linkAt(chain, total)))
    return { node, chain }
  }

  /** A turn of the tree has been answered. */
  rememberAnswer(tree: number, { id, completionText, reasoning, toolCalls }: Answer): void {
    this.#latestAnswer.set(tree, { id, completionText, reasoning, toolCalls })
  }

  /** Of a tree that will not grow any more. */
  forgetTree(tree: number): void {
    this.#latestAnswer.delete(tree)
  }

  /** To be called after a rollback. */
  forget(): void {
    this.#latestAnswer.clear()
  }

  /** @returns the row of the tools, and their hash */
  putTools(tree: number, tools: Exclude<SentTurn['tools'], null>): { id: number; hash: string } {
    if (typeof tools === 'string') {
      const hash = hashOf('', tools)
      return { id: this.#putHashed(tree, hash, tools), hash: hash.toString('latin1') }
    }
    const id = this.#findText.get(tree, Buffer.from(tools.hash, 'latin1'))
    if (id === undefined) throw new Error('the tools that a request repeats are not on record')
    return { id, hash: tools.hash }
  }

  /** @returns the text's row */
  putText(tree: number, text: string): number {
    return this.#putHashed(tree, hashOf('', text), text)
  }

  #putHashed(tree: number, hash: Buffer, text: string): number {
    return this.#findText.get(tree, hash) ?? this.#insert({ tree, hash, echoOf: null, body: packText(text) })
  }

  /** From the end, because all but the last few messages are known as a rule. */
  #deepestKnown(tree: number, chain: string): { id: number; depth: number } {
    for (let depth = chain.length / LINK_LENGTH; depth > 0; depth -= 1) {
      const known = this.#findNode.get(tree, linkAt(chain, depth))
      if (known !== undefined) return known
    }
    return { id: ROOT, depth: 0 }
  }

  #putMessage(tree: number, node: number, message: string): number {
    const hash = hashOf('', message)
    const known = this.#findText.get(tree, hash)
    if (known !== undefined) return known
    const { echoOf, text } = this.#asEcho(tree, node, message)
    return this.#insert({ tree, hash, echoOf, body: packText(text) })
  }

  /** A message as what it adds to the answer that it echoes, if it echoes one; the latest is the likeliest. */
  #asEcho(tree: number, node: number, message: string): { echoOf: number | null; text: string } {
    if (!message.includes('"assistant"')) return { echoOf: null, text: message }
    for (const answer of this.#answersFor(tree, node)) {
      const template = echoTemplate(message, answer)
      if (template !== undefined) return { echoOf: answer.id, text: template }
    }
    return { echoOf: null, text: message }
  }

  *#answersFor(tree: number, node: number): Generator<Answer> {
    const latest = this.#latestAnswer.get(tree)
    if (latest !== undefined) yield latest
    for (const row of this.#answers.iterate({ tree, node })) {
      if (row.id !== latest?.id) yield { id: row.id, ...toCompletion(row) }
    }
  }

  #insert(text: NewText): number {
    return rowid(this.#addText.run(text))
  }
}

function charsOf({ completionText, reasoning, toolCalls }: Answer): number {
  return (completionText?.length ?? 0) + (reasoning?.length ?? 0) + (toolCalls?.length ?? 0)
}

/** The links of texts that come after those of `chain`. */
function linksOf(texts: readonly string[], chain: string): string {
  // Every link has a prefix of one length, the first one too.
  let above = chain.slice(-LINK_LENGTH) || '\0'.repeat(LINK_LENGTH)
  let links = ''
  for (const text of texts) {
    above = hashOf(above, text).toString('latin1')
    links += above
  }
  return links
}

function linkAt(chain: string, depth: number): Buffer {
  return Buffer.from(chain.slice((depth - 1) * LINK_LENGTH, depth * LINK_LENGTH), 'latin1')
}

/**
 * Texts with lone surrogates are hashed by another algorithm over UTF-16: in UTF-8 they would all be the same
 * replacement character, and their UTF-16 could be another text's UTF-8.
 */
function hashOf(above: string, text: string): Buffer {
  const whole = text.isWellFormed()
    ? digest('sha256', `${above}${text}`, 'buffer')
    : digest('sha512', Buffer.from(`${above}${text}`, 'utf16le'), 'buffer')
  return whole.subarray(0, LINK_LENGTH)
}

function rowid(result: Database.RunResult): number {
  return Number(result.lastInsertRowid)
}
