/**
 * Finds the bridge: the text that a template writes between a completion and the next message. It consists of markup
 * that closes a tool call, and a special token that ends the turn, which the model also samples unless its completion
 * is truncated. In GLM's format it is empty: the model ends its turn by sampling the token that opens the next message.
 */
import type { TokenMatch } from '../tokenizer/added-tokens.ts'
import type { PromptAddedTokenFinder } from '../tokenizer/segments.ts'
import { countSharedChars } from './sentinels.ts'

/** The added tokens, at which a tokenizer splits every text. */
export interface BoundaryTokens {
  /** The ids of the added tokens by text. */
  ids: ReadonlyMap<string, number>
  /** Ids that end a completion for the engine. */
  eosIds: ReadonlySet<number>
}

/** The token that ends an assistant's turn. */
export interface EndOfTurn {
  /** The token's id; undefined if the first token of the next message ends the turn. */
  id: number | undefined
}

/** The bridge between a completion, which a sentinel represents, and the new part of a prompt. */
export interface Bridge {
  /** The text between the sentinel and the new part. */
  text: string
  /**
   * The ids that are appended to a truncated completion: special tokens at the end of the text, or an omitted end of
   * turn.
   */
  ids: readonly number[]
  /** The id of the token that ends the turn; undefined if the new part begins with it. */
  endId: number | undefined
}

/**
 * Finds the token that ends an assistant's turn.
 * @param texts the texts after an assistant message, each rendered with another following message
 * @param opening the generation prompt
 * @returns undefined if the texts have no special token in common and do not all begin with one
 */
export function findEndOfTurn(
  texts: readonly string[],
  opening: string,
  finder: PromptAddedTokenFinder,
  eosIds: ReadonlySet<number>,
): EndOfTurn | undefined {
  if (texts.length === 0) return undefined
  // A token that opens a message does not end the previous one, although it is part of all texts.
  const opener = findFirstToken(opening, finder)?.id
  const common = findSharedTokens(texts, finder).filter(({ id }) => id !== opener)
  const end = common.find(({ id }) => eosIds.has(id)) ?? common[0]
  if (end !== undefined) return { id: end.id }
  return texts.every((text) => findFirstToken(text, finder) !== undefined) ? { id: undefined } : undefined
}

/**
 * Finds the bridge to a new message.
 * @param header the text between the echo's sentinel and the next message's content
 * @param tail the text after the echo's sentinel if no message follows
 * @returns undefined if there is no special token where the new part could begin
 */
export function findBridge(
  header: string,
  tail: string,
  end: EndOfTurn,
  finder: PromptAddedTokenFinder,
  eosIds: ReadonlySet<number>,
): Bridge | undefined {
  const tokens = [...finder.find(header)]
  const shared = countSharedChars(header, tail)
  // If opening tokens end turns, a token that is also written without a following message is not an opening token but
  // an end of turn: Apertus's template ends tool calls with such a token.
  const ends = (token: TokenMatch) =>
    end.id === undefined
      ? eosIds.has(token.id) && token.end <= shared
      : token.id === end.id || eosIds.has(token.id)
  const last = tokens.findIndex(ends)
  if (last !== -1) return bridgeUpTo(header, tokens.slice(0, last + 1), finder)
  // The template omits the end of turn here, as DeepSeek V3's does after a tool call. The new part begins where header
  // and tail diverge.
  const next = tokens.find((token) => token.end > shared)
  if (end.id !== undefined) {
    const begin = Math.min(shared, next?.begin ?? shared)
    return { text: header.slice(0, begin), ids: [end.id], endId: end.id }
  }
  if (next === undefined || finder.removeMarks(header.slice(shared, next.begin)).trim() !== '')
    return undefined
  return { text: header.slice(0, next.begin), ids: [], endId: undefined }
}

/**
 * Returns the bridge that ends with the last of these tokens. All of them are appended to a truncated completion if no
 * text separates them; otherwise only the last one is.
 */
function bridgeUpTo(header: string, tokens: readonly TokenMatch[], finder: PromptAddedTokenFinder): Bridge {
  const adjoin = tokens.every(
    ({ begin }, index) => finder.removeMarks(header.slice(tokens[index - 1]?.end ?? 0, begin)) === '',
  )
  const added = adjoin ? tokens : tokens.slice(-1)
  const last = tokens.at(-1)!
  return { text: header.slice(0, last.end), ids: added.map(({ id }) => id), endId: last.id }
}

/** Returns the special tokens in the common prefix of all texts. */
function findSharedTokens(texts: readonly string[], finder: PromptAddedTokenFinder): TokenMatch[] {
  const length = texts.reduce(
    (shared, text) => Math.min(shared, countSharedChars(texts[0]!, text)),
    texts[0]!.length,
  )
  return [...finder.find(texts[0]!)].filter(({ end }) => end <= length)
}

/** Returns the added token at the beginning of a text; undefined if it begins with other text. */
function findFirstToken(text: string, finder: PromptAddedTokenFinder): TokenMatch | undefined {
  const { value } = finder.find(text).next()
  return value && finder.removeMarks(text.slice(0, value.begin)) === '' ? value : undefined
}
