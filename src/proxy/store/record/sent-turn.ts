/**
 * A turn on its way to the writer thread, and what comes back of it. Of what an earlier turn of the session had, only its
 * place on record travels: a request of a hundred messages repeats ninety-eight.
 */
import type { OpenTurn, TurnOutcome } from '../port/turn-store.ts'

export type SentTurn = Omit<OpenTurn, 'lastMessage' | 'promptPieces' | 'tools'> & {
  messages: SentTexts
  prompt: SentTexts
  /** The row of tools that are on record in this tree, in the place of their text. */
  tools: string | number | null
}

export type SentOutcome = Omit<TurnOutcome, 'promptTokenIds'> & {
  /** null: the engine did not tell. */
  prompt: SentPrompt | null
}

/** A prompt's token ids: so many of the tokens of a turn that is on record, and then the rest. */
export interface SentPrompt {
  /** The row of the turn; null: none of which the sender knows. */
  base: number | null
  shared: number
  rest: Int32Array
}

/** Messages, or the pieces of a prompt. */
export interface SentTexts {
  /** What these texts go on from. */
  base: RecordedTexts
  /** The texts after those. */
  texts: readonly string[]
}

export type ListName = 'messages' | 'prompt'

/** Some of the texts of a turn that comes after it; see `stretches.ts`. */
export interface Stretch extends Pick<SentTurn, 'sessionId' | 'epoch'> {
  readonly list: ListName
  readonly work: number
  /** undefined: a stretch before it is not on record. */
  readonly texts: SentTexts | undefined
  /** To be called with the end of these texts when they have been written, however often that is. */
  written(end: RecordedTexts): void
  /** They are not on record after all. */
  undone(): void
}

/** A list of texts that is on record. */
export interface RecordedTexts {
  /** Its row in `nodes`; {@link NO_TEXTS} has none. */
  node: number
  /** How many texts there are. */
  depth: number
  /** The hash of the last text together with all before it, byte for byte. */
  link: string
}

export const LINK_LENGTH = 16

/** Every link has a prefix of one length, the first one too. */
export const NO_TEXTS: RecordedTexts = { node: 0, depth: 0, link: '\0'.repeat(LINK_LENGTH) }

/** What the writer tells of a turn that it has put on record. */
export interface RecordedTurn {
  /** Its row. */
  turn: number
  request: RecordedRequest
}

/** What the writer tells of a request that it has put on record. */
export interface RecordedRequest {
  messages: RecordedTexts
  /** Its prompt without the last piece, which is another one in the prompt that goes on from there. */
  prompt: RecordedTexts
  /** The row of its tools. */
  tools: number | null
}
