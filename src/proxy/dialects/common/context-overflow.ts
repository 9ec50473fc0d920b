/** What engines say when prompt and answer do not fit into the model's context; each has its own words for it. */
import type { ProxyError } from '../../../base/errors.ts'

/** In tokens. */
export interface ContextOverflow {
  limit: number
  prompt?: number | undefined
  /** What was asked for. */
  completion?: number | undefined
}

/** vLLM, SGLang and this proxy, by version; each finds a number of tokens. */
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

/** @returns undefined for an error that is about something else */
export function readContextOverflow({ code, message }: ProxyError): ContextOverflow | undefined {
  if (code !== 'engine_rejected' && code !== 'context_length_exceeded') return undefined
  const limit = firstNumber(LIMIT, message)
  if (limit === undefined) return undefined
  const prompt = firstNumber(PROMPT, message)
  const completion = firstNumber(COMPLETION, message)
  return { limit, prompt, completion }
}

function firstNumber(patterns: readonly RegExp[], text: string): number | undefined {
  for (const pattern of patterns) {
    const found = pattern.exec(text)?.[1]
    if (found !== undefined) return Number(found)
  }
  return undefined
}
