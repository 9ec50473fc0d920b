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

/** The wordings of vLLM, SGLang and this proxy, by version; each pattern captures a number of tokens. */
const LIMIT = [
  /maximum context length (?:is|of) (\d+)/,
  /model's context length \((\d+)/,
  /maximum model length of (\d+)/,
]
const PROMPT = [
  /prompt contains (?:at least )?(\d+) input tokens/,
  /\((\d+) in the messages/,
  /request has (\d+) input tokens/,
  /(\d+) tokens from the input messages/,
  /input \((\d+) tokens\)/,
  /prompt \(length (\d+)\)/,
]
const COMPLETION = [
  /requested (\d+) output tokens/,
  /(\d+) in the completion/,
  /(\d+) tokens for the completion/,
  /is too large: (\d+)/,
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
