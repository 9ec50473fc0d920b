/**
 * Part of the engine port: comparison of tokenizers and templates. In token mode, an engine with another tokenizer
 * reads the ids as a different text, and its responses do not show this. Each engine is therefore queried for its ids
 * of a test text, and for the prompts that its own template renders of test chats.
 */

import type { ChatBody } from '../../../protocol/canonical/request.ts'

/**
 * The test text: many scripts, digits, spaces and an emoji. Tokenizers that agree on it are assumed to agree on every
 * prompt.
 */
export const TOKENIZER_TEXT =
  'The quick brown fox: 1234567890, 3.14159\n\tdef f(x):  return x**2\n\nÀ Zürich, naïve façade; Привет, мир; 你好,世界; こんにちは; 안녕하세요; مرحبا بالعالم; नमस्ते 🙂👍'

const MESSAGES = [{ role: 'user' as const, content: 'Say hello.' }]
/**
 * The tool of a test chat, because engines render tools differently: SGLang's chat route adds fields that the agent
 * omitted.
 */
const TOOL = {
  type: 'function' as const,
  function: {
    name: 'weather',
    description: 'Tells the weather.',
    parameters: { type: 'object', properties: { city: { type: 'string' } }, required: ['city'] },
  },
}

/** The chats by which templates are compared. */
export const COMPARED_CHATS: Readonly<Record<string, ChatBody>> = {
  'a chat': { messages: MESSAGES },
  'a chat with a tool': { messages: MESSAGES, tools: [TOOL] },
}

/** A query about an engine's tokenizer. */
export interface TokenizerQuery {
  text: string
  /** The ids whose texts are requested from an engine that does not report the ids of `text`. */
  ids?: readonly number[]
  /** Whether to request the engine's prompt ids of {@link COMPARED_CHATS}. */
  chats?: boolean
}

/** The engine's response to a {@link TokenizerQuery}, as far as it supports one. */
export interface TokenizerReply {
  /** The engine's ids of the query's text. */
  textIds?: readonly number[]
  /** The engine's text of each id in the query; undefined for an id that it does not report. */
  idTexts?: readonly (string | undefined)[]
  /** The ids of the prompts that the engine's template renders, by name of the chat in {@link COMPARED_CHATS}. */
  chatIds?: Readonly<Record<string, readonly number[]>>
}

/** The proxy's tokenizer, which tokenizes the prompts. */
export interface ExpectedTokenizer {
  /** The name given by `--tokenizer`. */
  readonly name: string
  /** The ids of {@link TOKENIZER_TEXT}, without a BOS token. */
  readonly ids: readonly number[]
  /** The prompt ids of the compared chats that its template accepts, by name. */
  readonly chatIds?: TokenizerReply['chatIds'] | undefined
  decode(ids: readonly number[]): string
}

export function createTokenizerQuery({ ids }: Pick<ExpectedTokenizer, 'ids'>): TokenizerQuery {
  return { text: TOKENIZER_TEXT, ids, chats: true }
}

/**
 * The result of a comparison of tokenizers. `split`: the vocabulary is the same, but the text is split differently, so
 * that sampled ids have the same text. `other`: the vocabulary differs. `unknown`: the engine does not report its
 * tokenizer.
 */
export type TokenizerVerdict = 'same' | 'split' | 'other' | 'unknown'

/** Compares an engine's tokenizer with the expected one. */
export function judgeTokenizer(
  expected: ExpectedTokenizer,
  { textIds, idTexts }: TokenizerReply,
): TokenizerVerdict {
  const { ids, decode } = expected
  const theirs = textIds && dropBosToken(textIds, ids)
  if (theirs === undefined) {
    if (!idTexts?.some((text) => text !== undefined)) return 'unknown'
    return findOtherText(expected, idTexts) === -1 ? 'same' : 'other'
  }
  if (theirs.length === ids.length && theirs.every((id, index) => id === ids[index])) return 'same'
  return decode(theirs) === decode(ids) ? 'split' : 'other'
}

/** Describes the first difference between an engine's tokenizer and the expected one. */
export function describeTokenizerMismatch(
  verdict: 'split' | 'other',
  expected: ExpectedTokenizer,
  { models, textIds, idTexts = [] }: TokenizerReply & { models: readonly { id: string }[] },
): string {
  const { name, ids, decode } = expected
  const model = models[0]?.id ?? 'its model'
  if (textIds === undefined) {
    const index = findOtherText(expected, idTexts)
    const texts = `${JSON.stringify(idTexts[index])} here and ${JSON.stringify(decode([ids[index]!]))} there`
    return `the tokenizer of ${model} is not that of --tokenizer ${name}: id ${ids[index]} reads ${texts}`
  }
  const theirs = dropBosToken(textIds, ids)
  const i = findFirstDifference(ids, theirs)!
  const difference = `id ${i + 1} of a text is ${theirs[i] ?? 'missing'} here and ${ids[i] ?? 'missing'} there`
  return verdict === 'other'
    ? `the tokenizer of ${model} is not that of --tokenizer ${name}: ${difference}`
    : `the tokenizer of ${model} splits text differently from that of --tokenizer ${name}: ${difference}`
}

/** Returns an engine's ids without a BOS token, which some tokenizers prepend even if none is requested. */
function dropBosToken(textIds: readonly number[], [first]: readonly number[]): readonly number[] {
  return textIds[0] !== first && textIds[1] === first ? textIds.slice(1) : textIds
}

/** Describes a prompt that the engine's own chat route renders differently; undefined if none is known. */
export function describePromptMismatch(
  { name, chatIds: ours = {} }: Pick<ExpectedTokenizer, 'name' | 'chatIds'>,
  { chatIds: theirs = {} }: TokenizerReply,
): string | undefined {
  for (const chat of Object.keys(COMPARED_CHATS)) {
    const [own, engines] = [ours[chat], theirs[chat]]
    const at = own && engines && findFirstDifference(own, engines)
    if (at === undefined) continue
    const lengths = `the engine's chat endpoint renders ${engines!.length} tokens, --tokenizer ${name} renders ${own!.length}`
    const difference = `(engine: ${engines![at] ?? 'none'}, tokenizer: ${own![at] ?? 'none'})`
    return `prompt mismatch for ${chat}: ${lengths}; first difference at position ${at + 1} ${difference}`
  }
  return undefined
}

/**
 * Returns the index of the first id with different texts, or -1. Skips incomplete characters, which servers display in
 * their own way, and ignores white space at both ends, which depends on the decoder.
 */
function findOtherText({ ids, decode }: ExpectedTokenizer, texts: readonly (string | undefined)[]): number {
  return ids.findIndex((id, index) => {
    const [own, theirs] = [decode([id]), texts[index]]
    if (theirs === undefined || own.includes('\uFFFD')) return false
    return own.trim() !== theirs.trim()
  })
}

/** Returns the first index at which two lists differ; undefined if they are equal. */
function findFirstDifference(a: ArrayLike<number>, b: ArrayLike<number>): number | undefined {
  const end = Math.min(a.length, b.length)
  for (let index = 0; index < end; index += 1) if (a[index] !== b[index]) return index
  return a.length === b.length ? undefined : end
}
