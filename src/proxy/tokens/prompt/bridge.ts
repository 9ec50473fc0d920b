/**
 * What a template writes between what a model said and the next message: markup that closes a call, and a special
 * token that ends the turn, which the model samples too unless its completion is cut off. Or, in GLM's way, nothing: the
 * token that opens the next message, which the model samples as well, to give up the floor.
 */
import type { AddedTokenFinder, TokenMatch } from '../tokenizer/added-tokens.ts'
import { sharedLength } from './sentinels.ts'

/** The tokens that a tokenizer splits every text at. */
export interface BoundaryTokens {
  /** By text. */
  ids: ReadonlyMap<string, number>
  /** Ids that end a completion for the engine. */
  eosIds: ReadonlySet<number>
}

export interface EndOfTurn {
  /** undefined: the next message's first token takes its place. */
  id: number | undefined
}

export interface Bridge {
  /** What stands between the mark and the new part. */
  text: string
  /** Its special tokens at the end: what a completion lacks that was cut off, as far as no markup is missing. */
  ids: readonly number[]
  /** The token that the text ends with; undefined: it ends before the next message's first token. */
  endId: number | undefined
}

/**
 * @param behinds what follows an answer in text, with different messages after it
 * @param opening what follows the last message where the assistant is to speak
 * @returns undefined if what follows does not begin with a special token each time
 */
export function findEndOfTurn(
  behinds: readonly string[],
  opening: string,
  finder: AddedTokenFinder,
  eosIds: ReadonlySet<number>,
): EndOfTurn | undefined {
  if (behinds.length === 0) return undefined
  // A token that opens a message does not end the one before, though it stands behind it each time.
  const opener = firstToken(opening, finder)?.id
  const common = sharedTokens(behinds, finder).filter(({ id }) => id !== opener)
  const end = common.find(({ id }) => eosIds.has(id)) ?? common[0]
  if (end !== undefined) return { id: end.id }
  return behinds.every((text) => firstToken(text, finder) !== undefined) ? { id: undefined } : undefined
}

/**
 * @param header what stands between the mark and what the next message says
 * @param tail what the template writes behind the mark when nothing follows
 * @returns undefined if there is no special token where the new part could begin
 */
export function findBridge(
  header: string,
  tail: string,
  end: EndOfTurn,
  finder: AddedTokenFinder,
  eosIds: ReadonlySet<number>,
): Bridge | undefined {
  const tokens = [...finder.find(header)]
  const shared = sharedLength(header, tail)
  // Where openings end turns, a token that is there when nothing follows is none of them: Apertus ends calls so.
  const ends = (token: TokenMatch) =>
    end.id === undefined
      ? eosIds.has(token.id) && token.end <= shared
      : token.id === end.id || eosIds.has(token.id)
  const last = tokens.findIndex(ends)
  if (last !== -1) return bridgeUpTo(header, tokens.slice(0, last + 1))
  // No token ends this message here, as DeepSeek V3 forgets it behind a call: the new part begins where the two part.
  const next = tokens.find((token) => token.end > shared)
  if (end.id !== undefined) {
    const begin = Math.min(shared, next?.begin ?? shared)
    return { text: header.slice(0, begin), ids: [end.id], endId: end.id }
  }
  if (next === undefined || header.slice(shared, next.begin).trim() !== '') return undefined
  return { text: header.slice(0, next.begin), ids: [], endId: undefined }
}

/** Of tokens that follow each other without anything between them, all can be added; else only the last. */
function bridgeUpTo(header: string, tokens: readonly TokenMatch[]): Bridge {
  const adjoin = tokens.every(({ begin }, index) => begin === (tokens[index - 1]?.end ?? 0))
  const added = adjoin ? tokens : tokens.slice(-1)
  const last = tokens.at(-1)!
  return { text: header.slice(0, last.end), ids: added.map(({ id }) => id), endId: last.id }
}

/** The special tokens that all texts begin with, whatever is between them. */
function sharedTokens(texts: readonly string[], finder: AddedTokenFinder): TokenMatch[] {
  const length = texts.reduce(
    (shared, text) => Math.min(shared, sharedLength(texts[0]!, text)),
    texts[0]!.length,
  )
  return [...finder.find(texts[0]!)].filter(({ end }) => end <= length)
}

/** The one that the text begins with. */
function firstToken(text: string, finder: AddedTokenFinder): TokenMatch | undefined {
  const { value } = finder.find(text).next()
  return value?.begin === 0 ? value : undefined
}
