/**
 * Parser of engines' error messages about a prompt and completion that exceed the model's context. Each engine words
 * them differently.
 */
import type { ProxyError } from '../../../base/errors.ts'

/** The numbers in the error message of a context overflow, in tokens. */
export interface ContextOverflow {
  limit: number
  prompt?: number | undefined
  /** The requested maximum length of the completion. */
  completion?: number | undefined
}

/**
 * The wordings of vLLM, SGLang and this proxy, by version; each pattern captures a number of tokens. The number of digits
 * is bounded, because a pattern that begins with `\d+` takes quadratic time, and the message may quote the agent.
 */
const LIMIT = [
  /maximum context length (?:is|of) (\d{1,12})/,
  /model's context length \((\d{1,12})/,
  /maximum model length of (\d{1,12})/,
]
const PROMPT = [
  /prompt contains (?:at least )?(\d{1,12}) input tokens/,
  /\((\d{1,12}) in the messages/,
  /request has (\d{1,12}) input tokens/,
  /(\d{1,12}) tokens from the input messages/,
  /input \((\d{1,12}) tokens\)/,
  /prompt \(length (\d{1,12})\)/,
]
const COMPLETION = [
  /requested (\d{1,12}) output tokens/,
  /(\d{1,12}) in the completion/,
  /(\d{1,12}) tokens for the completion/,
  /is too large: (\d{1,12})/,
]

/** Returns the numbers of a context overflow; undefined for any other error. */
export function readContextOverflow({ code, message }: ProxyError): ContextOverflow | undefined {
  if (code !== 'engine_rejected' && code !== 'context_length_exceeded') return undefined
  const limit = findFirstNumber(LIMIT, message)
  if (limit === undefined) return undefined
  const prompt = findFirstNumber(PROMPT, message)
  const completion = findFirstNumber(COMPLETION, message)
  return { limit, prompt, completion }
}

function findFirstNumber(patterns: readonly RegExp[], text: string): number | undefined {
  for (const pattern of patterns) {
    const found = pattern.exec(text)?.[1]
    if (found !== undefined) return Number(found)
  }
  return undefined
}
