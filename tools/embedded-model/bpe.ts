/**
 * Trains a byte-level BPE vocabulary (Sennrich et al. 2016; the byte alphabet is GPT-2's) and writes its files in
 * Hugging Face format. Deterministic: of equally frequent pairs, the one of the older tokens is merged first.
 */

/** Qwen2's pattern for splitting text into words; digits are separate, so that numbers are read digit by digit. */
const WORD_PATTERN =
  "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"

export interface SpecialToken {
  text: string
  /** Whether decoding for display omits it. */
  special: boolean
}

export interface TrainedVocabulary {
  /** Token texts in GPT-2's byte alphabet; the index is the id. The ids of special tokens follow. */
  tokens: string[]
  /** Pairs of token texts, in order of rank. */
  merges: [string, string][]
  /** The ids of each word of the training text, as the finished tokenizer splits it. */
  wordIds: Map<string, number[]>
}

/** Returns the words of a text without special tokens. */
export function splitWords(text: string): string[] {
  return text.match(new RegExp(WORD_PATTERN, 'gu')) ?? []
}

interface Word {
  ids: number[]
  count: number
}

/** Returns a key for a pair of ids; ids are far below 2^16. */
const pairKey = (left: number, right: number) => left * 0x10000 + right

/**
 * Trains a vocabulary.
 * @param texts the training text without special tokens
 * @param vocabularySize number of tokens to create, including the 256 bytes; fewer if no pair occurs twice any more
 */
export function trainBpe(texts: Iterable<string>, vocabularySize: number): TrainedVocabulary {
  const words = countWords(texts)
  const pairs = new PairIndex(words.values())
  const tokens = [...BYTE_ALPHABET]
  const merges: [string, string][] = []
  while (tokens.length < vocabularySize) {
    const best = pairs.mostFrequent()
    if (best === undefined) break
    const [left, right] = [Math.floor(best / 0x10000), best % 0x10000]
    merges.push([tokens[left]!, tokens[right]!])
    pairs.merge(left, right, tokens.length)
    tokens.push(tokens[left]! + tokens[right]!)
  }
  return { tokens, merges, wordIds: new Map([...words].map(([text, word]) => [text, word.ids])) }
}

function countWords(texts: Iterable<string>): Map<string, Word> {
  const words = new Map<string, Word>()
  for (const text of texts) {
    for (const word of splitWords(text)) {
      const known = words.get(word)
      if (known) known.count++
      else words.set(word, { ids: [...Buffer.from(word)], count: 1 })
    }
  }
  return words
}

/** Counts each pair of adjacent tokens, and the words that contain it. */
class PairIndex {
  readonly #counts = new Map<number, number>()
  readonly #words = new Map<number, Set<Word>>()

  constructor(words: Iterable<Word>) {
    for (const word of words) this.#add(word, word.count)
  }

  mostFrequent(): number | undefined {
    let best: number | undefined
    let bestCount = 1
    for (const [key, count] of this.#counts) {
      if (count > bestCount || (count === bestCount && best !== undefined && key < best)) {
        best = key
        bestCount = count
      }
    }
    return best
  }

  merge(left: number, right: number, merged: number): void {
    for (const word of [...(this.#words.get(pairKey(left, right)) ?? [])]) {
      this.#add(word, -word.count)
      word.ids = joinPair(word.ids, left, right, merged)
      this.#add(word, word.count)
    }
  }

  #add(word: Word, count: number): void {
    for (let i = 0; i + 1 < word.ids.length; i++) {
      const key = pairKey(word.ids[i]!, word.ids[i + 1]!)
      const total = (this.#counts.get(key) ?? 0) + count
      if (total === 0) this.#counts.delete(key)
      else this.#counts.set(key, total)
      const holders = this.#words.get(key) ?? new Set()
      if (count > 0) holders.add(word)
      else holders.delete(word)
      this.#words.set(key, holders)
    }
  }
}

function joinPair(ids: readonly number[], left: number, right: number, merged: number): number[] {
  const joined: number[] = []
  for (let i = 0; i < ids.length; i++) {
    if (ids[i] === left && ids[i + 1] === right) {
      joined.push(merged)
      i++
    } else joined.push(ids[i]!)
  }
  return joined
}

/** One printable character per byte: printable Latin-1 represents itself, the others are mapped to 256 and above. */
const BYTE_ALPHABET: readonly string[] = Array.from({ length: 256 }, (_, byte) => byteCharacter(byte))

function byteCharacter(byte: number): string {
  return String.fromCharCode(isPrintable(byte) ? byte : 256 + countUnprintableBelow(byte))
}

function isPrintable(byte: number): boolean {
  return (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae
}

function countUnprintableBelow(byte: number): number {
  return Array.from({ length: byte }, (_, lower) => lower).filter((lower) => !isPrintable(lower)).length
}

/** Returns `tokenizer.json`. It has no normalizer, so that decoding returns the original text. */
export function tokenizerJson(vocabulary: TrainedVocabulary, specials: readonly SpecialToken[]): string {
  return jsonFile({
    version: '1.0',
    truncation: null,
    padding: null,
    added_tokens: specials.map((token, i) => ({ id: vocabulary.tokens.length + i, ...addedToken(token) })),
    normalizer: null,
    pre_tokenizer: {
      type: 'Sequence',
      pretokenizers: [
        { type: 'Split', pattern: { Regex: WORD_PATTERN }, behavior: 'Isolated', invert: false },
        { type: 'ByteLevel', add_prefix_space: false, trim_offsets: false, use_regex: false },
      ],
    },
    post_processor: { type: 'ByteLevel', add_prefix_space: false, trim_offsets: false, use_regex: false },
    decoder: { type: 'ByteLevel', add_prefix_space: false, trim_offsets: false, use_regex: false },
    model: {
      type: 'BPE',
      dropout: null,
      unk_token: null,
      continuing_subword_prefix: '',
      end_of_word_suffix: '',
      fuse_unk: false,
      byte_fallback: false,
      ignore_merges: false,
      vocab: Object.fromEntries(vocabulary.tokens.map((token, id) => [token, id])),
      merges: vocabulary.merges,
    },
  })
}

export interface TokenizerConfigInput {
  vocabulary: TrainedVocabulary
  specials: readonly SpecialToken[]
  eosToken: string
  padToken: string
  chatTemplate: string
  modelMaxLength: number
}

/** Returns `tokenizer_config.json`, including the chat template. */
export function tokenizerConfigJson(input: TokenizerConfigInput): string {
  const firstSpecialId = input.vocabulary.tokens.length
  return jsonFile({
    add_bos_token: false,
    add_prefix_space: false,
    added_tokens_decoder: Object.fromEntries(
      input.specials.map((token, i) => [String(firstSpecialId + i), addedToken(token)]),
    ),
    bos_token: null,
    chat_template: input.chatTemplate,
    clean_up_tokenization_spaces: false,
    eos_token: input.eosToken,
    errors: 'replace',
    model_max_length: input.modelMaxLength,
    pad_token: input.padToken,
    split_special_tokens: false,
    tokenizer_class: 'Qwen2Tokenizer',
    unk_token: null,
  })
}

function addedToken({ text, special }: SpecialToken) {
  return { content: text, single_word: false, lstrip: false, rstrip: false, normalized: false, special }
}

function jsonFile(value: unknown): string {
  return `${JSON.stringify(value, null, 1)}\n`
}
