/**
 * Part of the engine port: token mode's ids mean another text to an engine with another tokenizer, and nothing in its answers
 * shows it. So each engine is asked for its own ids of one text, and for the prompts that its own template makes of chats.
 */
import type { ChatBody } from '../../../protocol/canonical/request.ts'

/** Scripts, digits, spaces and an emoji: vocabularies that agree on all of it are one for every prompt. */
export const TOKENIZER_TEXT =
  'The quick brown fox: 1234567890, 3.14159\n\tdef f(x):  return x**2\n\nÀ Zürich, naïve façade; Привет, мир; 你好,世界; こんにちは; 안녕하세요; مرحبا بالعالم; नमस्ते 🙂👍'

const MESSAGES = [{ role: 'user' as const, content: 'Say hello.' }]
/** Engines differ in what they write of a tool: SGLang's chat route adds fields that the agent left out. */
const TOOL = {
  type: 'function' as const,
  function: {
    name: 'weather',
    description: 'Tells the weather.',
    parameters: { type: 'object', properties: { city: { type: 'string' } }, required: ['city'] },
  },
}

/** Chats whose prompts are compared. */
export const COMPARED_CHATS: Readonly<Record<string, ChatBody>> = {
  'a chat': { messages: MESSAGES },
  'a chat with a tool': { messages: MESSAGES, tools: [TOOL] },
}

/** What an engine is asked about its tokenizer. */
export interface TokenizerQuestion {
  text: string
  /** What these read like is asked of an engine that does not tell the ids of the text. */
  ids?: readonly number[]
  /** Whether its prompts of {@link COMPARED_CHATS} are asked for. */
  chats?: boolean
}

/** What an engine tells about its tokenizer, as far as it does. */
export interface TokenizerAnswer {
  /** What its tokenizer makes of the text that it was asked about. */
  textIds?: readonly number[]
  /** What each of the ids reads like to it; undefined: it does not tell that one. */
  idTexts?: readonly (string | undefined)[]
  chatIds?: Readonly<Record<string, readonly number[]>>
}

/** The tokenizer that makes the prompts. */
export interface ExpectedTokenizer {
  /** As `--tokenizer` names it. */
  readonly name: string
  /** Of {@link TOKENIZER_TEXT}, without a token that begins the text. */
  readonly ids: readonly number[]
  /** Of those chats that its template takes. */
  readonly chatIds?: TokenizerAnswer['chatIds'] | undefined
  decode(ids: readonly number[]): string
}

export function createTokenizerQuestion({ ids }: Pick<ExpectedTokenizer, 'ids'>): TokenizerQuestion {
  return { text: TOKENIZER_TEXT, ids, chats: true }
}

/** `unknown`: the engine does not say. */
export type TokenizerVerdict = 'same' | 'split' | 'other' | 'unknown'

/** @returns `split` for one of the same vocabulary that cuts the text in other places: what is sampled means the same */
export function judgeTokenizer(
  expected: ExpectedTokenizer,
  { textIds, idTexts }: TokenizerAnswer,
): TokenizerVerdict {
  const { ids, decode } = expected
  if (textIds === undefined) {
    if (!idTexts?.some((text) => text !== undefined)) return 'unknown'
    return otherText(expected, idTexts) === -1 ? 'same' : 'other'
  }
  // Some tokenizers begin a text with a token of their own, asked or not.
  const theirs = textIds.length === ids.length + 1 ? textIds.slice(1) : textIds
  if (theirs.length === ids.length && theirs.every((id, at) => id === ids[at])) return 'same'
  return decode(textIds) === decode(ids) ? 'split' : 'other'
}

/** Both names, and the first place where they differ. */
export function describeTokenizer(
  verdict: 'split' | 'other',
  expected: ExpectedTokenizer,
  { models, textIds, idTexts = [] }: TokenizerAnswer & { models: readonly { id: string }[] },
): string {
  const { name, ids, decode } = expected
  const model = models[0]?.id ?? 'its model'
  if (textIds === undefined) {
    const at = otherText(expected, idTexts)
    const texts = `${JSON.stringify(idTexts[at])} here and ${JSON.stringify(decode([ids[at]!]))} there`
    return `the tokenizer of ${model} is not that of --tokenizer ${name}: id ${ids[at]} reads ${texts}`
  }
  const at = firstDifference(ids, textIds)!
  const place = `id ${at + 1} of a text is ${textIds[at] ?? 'missing'} here and ${ids[at] ?? 'missing'} there`
  return verdict === 'other'
    ? `the tokenizer of ${model} is not that of --tokenizer ${name}: ${place}`
    : `the tokenizer of ${model} cuts text in other places than that of --tokenizer ${name}: ${place}`
}

/** A prompt that the engine's own chat route would have made otherwise; undefined: none is known. */
export function describePrompts(
  { name, chatIds: ours = {} }: Pick<ExpectedTokenizer, 'name' | 'chatIds'>,
  { chatIds: theirs = {} }: TokenizerAnswer,
): string | undefined {
  for (const chat of Object.keys(COMPARED_CHATS)) {
    const [own, engines] = [ours[chat], theirs[chat]]
    const at = own && engines && firstDifference(own, engines)
    if (at === undefined) continue
    const lengths = `the engine's chat endpoint renders ${engines!.length} tokens, --tokenizer ${name} renders ${own!.length}`
    const difference = `(engine: ${engines![at] ?? 'none'}, tokenizer: ${own![at] ?? 'none'})`
    return `prompt mismatch for ${chat}: ${lengths}; first difference at position ${at + 1} ${difference}`
  }
  return undefined
}

/** Bytes of half a character are shown in each server's own way, and spaces at an end in some decoders'. */
function otherText({ ids, decode }: ExpectedTokenizer, texts: readonly (string | undefined)[]): number {
  return ids.findIndex((id, at) => {
    const [own, theirs] = [decode([id]), texts[at]]
    if (theirs === undefined || own.includes('\uFFFD')) return false
    return own.trim() !== theirs.trim()
  })
}

function firstDifference(ours: readonly number[], theirs: readonly number[]): number | undefined {
  const at = theirs.findIndex((id, at) => id !== ours[at])
  if (at !== -1) return at
  return ours.length === theirs.length ? undefined : theirs.length
}
