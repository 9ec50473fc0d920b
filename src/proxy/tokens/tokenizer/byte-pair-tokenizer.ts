/**
 * Converts a tokenizer in tiktoken's format (byte strings in the order of their ranks, a regular expression that splits
 * texts, and special tokens) to a `tokenizer.json`.
 *
 * tiktoken has no list of merges: of all adjacent tokens whose concatenation is a token, it merges the pair with the
 * lowest rank first, and the leftmost of equal pairs. Before a token is formed, no merge crosses its ends, so the
 * merges inside it are those of its bytes alone, and the last one always joins the same pair. A list with one merge per
 * token, in the order of the ranks, therefore has the same result.
 */
import { ProxyError } from '../../../base/errors.ts'
import type { AddedToken } from './added-tokens.ts'
import { encodeByteLevel } from './token-pieces.ts'
import type { TokenizerJson } from './tokenizer-files.ts'

/** A tokenizer in tiktoken's format. */
export interface BytePairTokenizer {
  /** The tokens by rank, each with one character from U+0000 to U+00FF per byte. */
  tokens: readonly string[]
  /** The id of the token with rank 0. */
  firstId: number
  /** The regular expression that splits texts; each match is tokenized separately. */
  pattern: string
  /** tiktoken's special tokens, which are recognized before the pattern splits the texts between them. */
  addedTokens: readonly AddedToken[]
}

/**
 * Converts a tokenizer to the `tokenizer.json` of Hugging Face's library.
 * @param path the tokenizer's file, for error messages
 * @throws ProxyError `config_invalid` if the token of a byte is missing, or a token occurs twice
 */
export function createTokenizerJson(tokenizer: BytePairTokenizer, path: string): TokenizerJson {
  const { tokens, firstId, pattern, addedTokens } = tokenizer
  const ranks = new Map(tokens.map((token, rank) => [token, rank]))
  if (ranks.size !== tokens.length) throw createInvalidFileError(path, 'a token occurs twice')
  for (let byte = 0; byte < 256; byte += 1) {
    if (!ranks.has(String.fromCharCode(byte)))
      throw createInvalidFileError(path, `there is no token for the byte ${byte}`)
  }
  const names = tokens.map(encodeByteLevel)
  // The model, which is nearly all of the file, is the last field, so that the other fields can be read without it.
  return {
    version: '1.0',
    truncation: null,
    padding: null,
    added_tokens: addedTokens.map(withAllFlags),
    normalizer: null,
    pre_tokenizer: {
      type: 'Sequence',
      pretokenizers: [
        { type: 'Split', pattern: { Regex: pattern }, behavior: 'Isolated', invert: false },
        { type: 'ByteLevel', add_prefix_space: false, trim_offsets: true, use_regex: false },
      ],
    },
    post_processor: null,
    decoder: { type: 'ByteLevel', add_prefix_space: true, trim_offsets: true, use_regex: true },
    model: {
      type: 'BPE',
      dropout: null,
      unk_token: null,
      continuing_subword_prefix: null,
      end_of_word_suffix: null,
      fuse_unk: false,
      byte_fallback: false,
      // tiktoken first looks up the complete match, because merges cannot form every token.
      ignore_merges: true,
      vocab: makeVocabulary(names, firstId, addedTokens, path),
      merges: tokens.flatMap((token) => {
        const pair = findLastMerge(token, ranks)
        return pair === undefined ? [] : [pair.map((rank) => names[rank]!)]
      }),
    },
  } as TokenizerJson
}

/** Returns an added token with all flags, which the library requires. */
function withAllFlags({ id, content, special }: AddedToken): AddedToken {
  return {
    id,
    content,
    single_word: false,
    lstrip: false,
    rstrip: false,
    normalized: false,
    special: special === true,
  }
}

/** Returns the ids of all tokens. It includes special tokens, because the library assigns other ids to absent ones. */
function makeVocabulary(
  names: readonly string[],
  firstId: number,
  addedTokens: readonly AddedToken[],
  path: string,
): Record<string, number> {
  const ids = new Map(names.map((name, rank) => [name, firstId + rank]))
  const taken = new Set(ids.values())
  for (const { content, id } of addedTokens) {
    if (ids.has(content) || taken.has(id))
      throw createInvalidFileError(
        path,
        `the special token ${content} (${id}) has the text or the id of another token`,
      )
    ids.set(content, id)
    taken.add(id)
  }
  return Object.fromEntries(ids)
}

/**
 * Returns the ranks of the two tokens whose merge forms `token`; undefined for a single byte, and for a token that the
 * merges of its bytes do not form.
 */
export function findLastMerge(
  token: string,
  ranks: ReadonlyMap<string, number>,
): [left: number, right: number] | undefined {
  let last: [number, number] | undefined
  const ends = mergeBytes(token, ranks, (begin, middle, end) => {
    last = [ranks.get(token.slice(begin, middle))!, ranks.get(token.slice(middle, end))!]
  })
  return ends.length === 1 ? last : undefined
}

/**
 * Merges bytes as tiktoken does.
 * @param onMerge receives, for each merge, the begin of the left token, the begin of the right token, and the end of
 *   the right token
 * @returns the end of each resulting token
 */
export function mergeBytes(
  bytes: string,
  ranks: ReadonlyMap<string, number>,
  onMerge?: (begin: number, middle: number, end: number) => void,
): number[] {
  const ends = Array.from(bytes, (_, index) => index + 1)
  for (;;) {
    let lowest = Number.POSITIVE_INFINITY
    let found = -1
    for (let index = 0; index + 1 < ends.length; index += 1) {
      const rank = ranks.get(bytes.slice(ends[index - 1] ?? 0, ends[index + 1]))
      if (rank === undefined || rank >= lowest) continue
      lowest = rank
      found = index
    }
    if (found === -1) return ends
    onMerge?.(ends[found - 1] ?? 0, ends[found]!, ends[found + 1]!)
    ends.splice(found, 1)
  }
}

/** Returns the error for a tokenizer that cannot be converted. */
export function createInvalidFileError(path: string, reason: string): ProxyError {
  return new ProxyError(
    'config_invalid',
    `cannot use ${path}: ${reason}; convert the tokenizer to a tokenizer.json with transformers, and put it beside this file`,
  )
}
