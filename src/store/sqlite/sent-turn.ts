/**
 * A turn's request on its way to the writer thread, and what comes back of it. Of what the session's last request had,
 * only hashes travel: a request of a hundred messages repeats ninety-eight.
 */
import type { OpenTurn } from '../turn-store.ts'

export type SentTurn = Omit<OpenTurn, 'requestMessages' | 'promptPieces' | 'tools'> & {
  messages: SentTexts
  prompt: SentTexts
  /** A hash in the place of tools that are on record in this tree. */
  tools: string | { hash: string } | null
}

/** Messages, or the pieces of a prompt. */
export interface SentTexts {
  /** How many texts are left out: they are a node that is on record in this tree. */
  from: number
  /** The texts after those. */
  texts: readonly string[]
  /** The chain of the first texts, as far as it is known; at least of those that are left out. */
  chain: string
}

/** What the writer tells of a request that it has put on record. */
export interface RecordedRequest {
  /** Of all its messages. */
  messagesChain: string
  /** Of all pieces of its prompt. */
  promptChain: string
  toolsHash: string | null
}

/**
 * In a chain, each text has a link of so many characters: the hash, byte by byte, of the text together with all
 * before it.
 */
export const LINK_LENGTH = 16
