/**
 * Converts a tokenizer of tiktoken's kind to a `tokenizer.json`: a vocabulary of byte strings in the order of their
 * ranks, a regular expression that splits texts, and special tokens.
 *
 * tiktoken has no list of merges: of all adjacent tokens whose concatenation is a token, it merges those with the lowest
 * rank first, and the leftmost of equal ones. Up to the moment at which a token comes into being, no merge crosses its
 * ends, so the merges inside it are those of its bytes alone, and the last one is always the same pair. One merge
 * per token, in the order of the ranks, therefore has the same result.
 */
import { ProxyError } from '../../../base/errors.ts'
import type { AddedToken } from './added-tokens.ts'
import { encodeByteLevel } from './token-pieces.ts'
import type { TokenizerJson } from './tokenizer-files.ts'

/** A token that is found in a text before the texts between such tokens are split by the pattern. */
export type SpecialToken = Pick<AddedToken, 'id' | 'content' | 'special'>

export interface BytePairTokenizer {
  /** The tokens by rank, each with one character from U+0000 to U+00FF per byte. */
  tokens: readonly string[]
  /** The id of the token with rank 0. */
  firstId: number
  /** The expression whose matches are tokenized one by one. */
  pattern: string
  specialTokens: readonly SpecialToken[]
}

/**
 * Returns the tokenizer in the form of Hugging Face's library.
 * @param path the tokenizer's file, for error messages
 * @throws ProxyError `config_invalid` if tokens are missing, or occur twice
 */
export function createTokenizerJson(tokenizer: BytePairTokenizer, path: string): TokenizerJson {
  const { tokens, firstId, pattern, specialTokens } = tokenizer
  const ranks = new Map(tokens.map((token, rank) => [token, rank]))
  if (ranks.size !== tokens.length) throw createInvalidFileError(path, 'a token occurs twice')
  for (let byte = 0; byte < 256; byte += 1) {
    if (!ranks.has(String.fromCharCode(byte)))
      throw createInvalidFileError(path, `there is no token for the byte ${byte}`)
  }
  const names = tokens.map(encodeByteLevel)
  // The model, nearly all of the file, is last: the other fields can be read without it.
  return {
    version: '1.0',
    truncation: null,
    padding: null,
    added_tokens: specialTokens.map(toAddedToken),
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
      // tiktoken looks a match up as a whole first: a token may be out of reach of the merges.
      ignore_merges: true,
      vocab: makeVocabulary(names, firstId, specialTokens, path),
      merges: tokens.flatMap((token) => {
        const pair = findLastMerge(token, ranks)
        return pair === undefined ? [] : [pair.map((rank) => names[rank]!)]
      }),
    },
  } as TokenizerJson
}

function toAddedToken({ id, content, special }: SpecialToken): AddedToken {
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

/** The library gives a special token that is not in the vocabulary the next free id, so they are all in it. */
function makeVocabulary(
  names: readonly string[],
  firstId: number,
  specialTokens: readonly SpecialToken[],
  path: string,
): Record<string, number> {
  const ids = new Map(names.map((name, rank) => [name, firstId + rank]))
  const taken = new Set(ids.values())
  for (const { content, id } of specialTokens) {
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
 * Returns the ranks of the two tokens that are merged last into `token`; undefined for one byte, and if the merges of
 * its bytes end otherwise, so that it can only be found as a whole.
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
 * @param onMerge receives the begin of the left token, the begin of the right one, and its end
 * @returns the end of each token that remains
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

export function createInvalidFileError(path: string, reason: string): ProxyError {
  return new ProxyError(
    'config_invalid',
    `cannot use ${path}: ${reason}; convert the tokenizer to a tokenizer.json with transformers, and put it beside this file`,
  )
}
