/**
 * Part of the engine port: token mode's ids mean another text to an engine with another tokenizer, and nothing in its answers
 * shows it. So each engine is asked for its own ids of one text.
 */
import type { EngineHealth } from './engine-client.ts'

/** Scripts, digits, spaces and an emoji: vocabularies that agree on all of it are one for every prompt. */
export const TOKENIZER_TEXT =
  'The quick brown fox: 1234567890, 3.14159\n\tdef f(x):  return x**2\n\nÀ Zürich, naïve façade; Привет, мир; 你好,世界; こんにちは; 안녕하세요; مرحبا بالعالم; नमस्ते 🙂👍'

/** The tokenizer that makes the prompts. */
export interface ExpectedTokenizer {
  /** As `--tokenizer` names it. */
  readonly name: string
  /** Of {@link TOKENIZER_TEXT}, without a token that begins the text. */
  readonly ids: readonly number[]
  decode(ids: readonly number[]): string
}

/** `unknown`: the engine does not say. */
export type TokenizerVerdict = 'same' | 'split' | 'other' | 'unknown'

/** @returns `split` for one of the same vocabulary that cuts the text in other places: what is sampled means the same */
export function judgeTokenizer(
  { ids, decode }: ExpectedTokenizer,
  { textIds }: Pick<EngineHealth, 'textIds'>,
): TokenizerVerdict {
  if (textIds === undefined) return 'unknown'
  // Some tokenizers begin a text with a token of their own, asked or not.
  const theirs = textIds.length === ids.length + 1 ? textIds.slice(1) : textIds
  if (theirs.length === ids.length && theirs.every((id, at) => id === ids[at])) return 'same'
  return decode(textIds) === decode(ids) ? 'split' : 'other'
}

/** Both names, and the first place where they differ. */
export function describeTokenizer(
  verdict: 'split' | 'other',
  { name, ids }: ExpectedTokenizer,
  { models, textIds = [] }: Pick<EngineHealth, 'models' | 'textIds'>,
): string {
  const other = textIds.findIndex((id, at) => id !== ids[at])
  const at = other === -1 ? textIds.length : other
  const model = models[0]?.id ?? 'its model'
  const place = `id ${at + 1} of a text is ${textIds[at] ?? 'missing'} here and ${ids[at] ?? 'missing'} there`
  return verdict === 'other'
    ? `the tokenizer of ${model} is not that of --tokenizer ${name}: ${place}`
    : `the tokenizer of ${model} cuts text in other places than that of --tokenizer ${name}: ${place}`
}
