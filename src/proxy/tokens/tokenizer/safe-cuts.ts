/**
 * Where a long text may be cut in two without another token in it: the ids of both parts are those of the whole. Known of
 * tokenizers that split text before all else by one of a few published expressions: none of these has a match that goes on
 * from a letter to white space, so every text of theirs is split there anyway, and what is behind begins anew.
 */
import type { AddedToken } from './added-tokens.ts'

/** Expressions of `Split`, as published. */
const EXPRESSIONS: ReadonlySet<unknown> = new Set([
  // Qwen 2 to 3.
  "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+",
  // Llama 3.
  "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+",
  // DeepSeek V3.
  '\\p{N}{1,3}',
  '[一-龥぀-ゟ゠-ヿ]+',
  '[!"#$%&\'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+',
])

/** Of a tokenizer.json, what is read here. */
interface SplittingFiles {
  normalizer?: unknown
  pre_tokenizer?: unknown
  added_tokens?: readonly AddedToken[]
}

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

/** Whether a text may be cut between a letter and white space, both of ASCII, for this tokenizer. */
export function mayCutAtSpaces({ normalizer, pre_tokenizer, added_tokens = [] }: SplittingFiles): boolean {
  const tokensKeepApart = added_tokens.every(
    ({ content, lstrip, rstrip, single_word }) => !lstrip && !rstrip && !single_word && !/\s/.test(content),
  )
  const steps = (pre_tokenizer as PipelineStep | null)?.pretokenizers ?? []
  return tokensKeepApart && keepsSpaces(normalizer as PipelineStep | null) && isSplit(steps)
}

/** NFC joins no letter to white space, nor white space to anything. */
function keepsSpaces(normalizer: PipelineStep | null | undefined): boolean {
  return !normalizer || normalizer.type === 'NFC' || normalizer.normalizers?.length === 0
}

function isSplit(steps: readonly PipelineStep[]): boolean {
  const bytes = steps.at(-1)
  const isKnown = ({ type, pattern, behavior, invert }: PipelineStep) =>
    type === 'Split' && behavior === 'Isolated' && invert === false && EXPRESSIONS.has(pattern?.Regex)
  const isPlain = bytes?.type === 'ByteLevel' && bytes.add_prefix_space === false && bytes.use_regex === false
  return isPlain && steps.length > 1 && steps.slice(0, -1).every(isKnown)
}

/** Each part has more characters than this, but for the last. */
export const MIN_PART_CHARS = 8192
/** Of 16 places that will do, one. */
const CHANCE = 15

/**
 * Cuts a text at such places, which depend on the words there: two texts that differ in one place have most parts in
 * common.
 */
export function cutAtSpaces(text: string): string[] {
  const parts: string[] = []
  let from = 0
  for (let at = MIN_PART_CHARS; at < text.length; at += 1) {
    const before = text.charCodeAt(at - 1)
    if (!isSpace(text.charCodeAt(at)) || !isLetter(before)) continue
    const mixed = before + text.charCodeAt(at - 2) * 3 + text.charCodeAt(at - 3) * 5
    if ((mixed & CHANCE) !== 0) continue
    parts.push(text.slice(from, at))
    from = at
    at += MIN_PART_CHARS
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
