/**
 * Finds positions where a long text can be cut without changing its ids. This is possible for tokenizers that first
 * split text by one of a few published regular expressions: none of them matches a letter followed by white space, so
 * every text is split there anyway, and the rest is matched independently.
 */
import type { AddedToken } from './added-tokens.ts'

/** The regular expressions of `Split` steps that never match a letter followed by white space. */
const EXPRESSIONS: ReadonlySet<unknown> = new Set([
  // Qwen 2 to 3.
  "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+",
  // Llama 3.
  "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+",
  // DeepSeek V3.
  '\\p{N}{1,3}',
  '[一-龥぀-ゟ゠-ヿ]+',
  '[!"#$%&\'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+',
  // Kimi K2 to K2.6.
  "[\\p{Han}]+|[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}&&[^\\p{Han}]]*[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}&&[^\\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}&&[^\\p{Han}]]+[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}&&[^\\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+",
  // Mistral's tekken.
  '[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]*[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]+|[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]+[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]*|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+',
])

/** The fields of a `tokenizer.json` that are used here. */
interface SplittingConfig {
  normalizer?: unknown
  pre_tokenizer?: unknown
  added_tokens?: readonly AddedToken[]
}

/** A step of a normalizer or a pre-tokenizer. */
interface PipelineStep {
  type?: unknown
  pattern?: { Regex?: unknown }
  behavior?: unknown
  invert?: unknown
  add_prefix_space?: unknown
  use_regex?: unknown
  normalizers?: readonly unknown[]
  pretokenizers?: readonly PipelineStep[]
}

/** Returns whether a tokenizer allows cutting a text between a letter and white space, both of ASCII. */
export function mayCutAtSpaces({ normalizer, pre_tokenizer, added_tokens = [] }: SplittingConfig): boolean {
  const tokensKeepApart = added_tokens.every(
    ({ content, lstrip, rstrip, single_word }) => !lstrip && !rstrip && !single_word && !/\s/.test(content),
  )
  const steps = (pre_tokenizer as PipelineStep | null)?.pretokenizers ?? []
  return tokensKeepApart && keepsSpaces(normalizer as PipelineStep | null) && isSplit(steps)
}

/** Returns whether a normalizer preserves white space, as NFC does. */
function keepsSpaces(normalizer: PipelineStep | null | undefined): boolean {
  return !normalizer || normalizer.type === 'NFC' || normalizer.normalizers?.length === 0
}

/** Returns whether the pre-tokenizer consists of known `Split` steps and a `ByteLevel` step. */
function isSplit(steps: readonly PipelineStep[]): boolean {
  const bytes = steps.at(-1)
  const isKnown = ({ type, pattern, behavior, invert }: PipelineStep) =>
    type === 'Split' && behavior === 'Isolated' && invert === false && EXPRESSIONS.has(pattern?.Regex)
  const isPlain = bytes?.type === 'ByteLevel' && bytes.add_prefix_space === false && bytes.use_regex === false
  return isPlain && steps.length > 1 && steps.slice(0, -1).every(isKnown)
}

/** The minimum length of each part but the last. */
export const MIN_PART_CHARS = 8192
/** The mask that selects about one of 16 possible positions. */
const POSITION_MASK = 15

/**
 * Cuts a text at some of the possible positions. They depend on the characters before them, so that two texts that
 * differ in one place have most parts in common.
 */
export function cutAtSpaces(text: string): string[] {
  const parts: string[] = []
  let from = 0
  for (let index = MIN_PART_CHARS; index < text.length; index += 1) {
    const before = text.charCodeAt(index - 1)
    if (!isSpace(text.charCodeAt(index)) || !isLetter(before)) continue
    const mixed = before + text.charCodeAt(index - 2) * 3 + text.charCodeAt(index - 3) * 5
    if ((mixed & POSITION_MASK) !== 0) continue
    parts.push(text.slice(from, index))
    from = index
    index += MIN_PART_CHARS
  }
  parts.push(text.slice(from))
  return parts
}

function isSpace(code: number): boolean {
  return code === 0x20 || code === 0x0a || code === 0x09 || code === 0x0d
}

function isLetter(code: number): boolean {
  return (code >= 0x61 && code <= 0x7a) || (code >= 0x41 && code <= 0x5a)
}
