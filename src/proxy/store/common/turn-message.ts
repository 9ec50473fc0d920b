/**
 * The messages in which turns are sent to the writer thread, and its replies. Data that an earlier turn of the session
 * has is sent as a reference to the stored row: a request of a hundred messages repeats ninety-eight.
 */
import type { OpenTurn, TurnOutcome } from '../port/turn-store.ts'

/** A turn to open, with references to stored texts. */
export type TurnMessage = Omit<OpenTurn, 'lastMessage' | 'promptPieces' | 'tools'> & {
  messages: TextListMessage
  prompt: TextListMessage
  /** The text of the tools, or its row id if it is stored in this tree. */
  tools: string | number | null
}

/** The outcome of a turn, with a reference to the prompt of a stored turn. */
export type OutcomeMessage = Omit<TurnOutcome, 'promptTokenIds'> & {
  /** null: the engine did not report the prompt. */
  prompt: PromptReference | null
}

/** A prompt's token ids: the first `shared` tokens of a committed turn, followed by the rest. */
export interface PromptReference {
  /** The row id of the turn; null: the sender has no such turn cached. */
  base: number | null
  shared: number
  rest: Int32Array
}

/** A list of messages, or of a prompt's texts. */
export interface TextListMessage {
  /** The stored list that the texts extend. */
  base: TextListNode
  /** The texts after those of `base`. */
  texts: readonly string[]
}

/** The lists of texts of a request. */
export type TextListName = 'messages' | 'prompt'

/** A batch of texts, which precedes the command of its turn; see `text-batches.ts`. */
export interface TextBatch extends Pick<TurnMessage, 'sessionId' | 'epoch'> {
  readonly list: TextListName
  readonly work: number
  /** The texts, and the stored list before them; undefined: an earlier batch has not been stored. */
  readonly texts: TextListMessage | undefined
  /** Called with the end of these texts after each write of them. */
  onWritten(end: TextListNode): void
  /** Called if the transaction that wrote the texts was not committed. */
  onUndone(): void
}

/** A stored list of texts. */
export interface TextListNode {
  /** Its row in `nodes`; {@link NO_TEXTS} has none. */
  node: number
  /** The number of texts. */
  depth: number
  /** The hash of the last text and all texts before it. */
  link: string
}

/** The length of a link: the first bytes of a SHA-256, as Latin-1 characters. */
export const LINK_LENGTH = 16

/** The empty list, whose link has the same length as every other. */
export const NO_TEXTS: TextListNode = { node: 0, depth: 0, link: '\0'.repeat(LINK_LENGTH) }

/** The writer's reply for a stored turn. */
export interface TurnReply {
  /** The turn's row id. */
  turn: number
  request: RequestReply
}

/** The writer's reply for a stored request. */
export interface RequestReply {
  messages: TextListNode
  /** Its prompt without the last text, which differs in the prompt that extends it. */
  prompt: TextListNode
  /** The row id of its tools. */
  tools: number | null
}
