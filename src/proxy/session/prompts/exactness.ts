import type { Completion } from '../../../protocol/canonical/completion.ts'
import { NO_ENGINE } from '../../../protocol/canonical/events.ts'
import { isTokenId, MAX_TOKEN_ID } from '../../../protocol/token-ids/token-ids.ts'

/** Logarithms of probabilities are at most 0; an engine's 32-bit sums may exceed it slightly. */
const MAX_LOGPROB = 1e-3
/**
 * vLLM writes -9999 for minus infinity, which JSON lacks (`vllm/entrypoints/openai/chat_completion/serving.py`): a
 * token of that probability is never sampled.
 */
const MISSING_LOGPROB = -9_999

/**
 * Returns why a completion cannot be trained on, or null if it can: the prompt's ids are known, each sampled token has
 * an id and a log-probability, and the engine's own count agrees. Engines lose ids in known ways (a tool parser that
 * swallows chunks, an unknown flag), so missing ids are never interpreted as "no tokens".
 */
export function findInexactReason(completion: Completion): string | null {
  const { start, end, tokenIds, logprobs } = completion
  if (start === undefined) return 'the engine gave no answer'
  // Nothing was sampled, and nothing is missing.
  if (start.engine === NO_ENGINE) return null
  const promptCount = start.promptTokenIds?.length ?? 0
  if (promptCount === 0) {
    // Some workers of version 1 report no ids at all.
    const isWithoutAny = tokenIds.length === 0 && hasText(completion)
    return `the engine did not report ${isWithoutAny ? 'token ids of the completion, nor ' : ''}the token ids of the prompt`
  }
  if (tokenIds.length === 0 && hasText(completion))
    return 'the engine did not report the token ids of the completion'
  if (tokenIds.length !== logprobs.length) {
    return `the engine reported ${tokenIds.length} token ids but ${logprobs.length} logprobs`
  }
  const wrong = findWrongId(tokenIds, start.vocabularySize)
  if (wrong !== undefined) return wrong
  if (!logprobs.every(isLogprob)) return 'the engine reported a logprob that is none'
  const { completion_tokens: counted, prompt_tokens: promptCounted } = end?.usage ?? {}
  if (counted !== undefined && counted !== tokenIds.length) {
    return `the engine counted ${counted} completion tokens but reported ${tokenIds.length} ids`
  }
  if (promptCounted !== undefined && promptCounted !== promptCount) {
    return `the engine counted ${promptCounted} prompt tokens but reported ${promptCount} ids`
  }
  return null
}

/** The codes of the reasons, which omit their numbers. */
const INEXACT_CODES = [
  ['no_answer', /gave no answer$/],
  ['prompt_ids_missing', /token ids of the prompt$/],
  ['completion_ids_missing', /token ids of the completion$/],
  ['counts_differ', /^the engine counted | token ids but \d+ logprobs$/],
  ['invalid_token_id', / token id /],
  ['invalid_logprob', / logprob that is none$/],
] as const

/** @param reason as returned by {@link findInexactReason} */
export function getInexactCode(reason: string): (typeof INEXACT_CODES)[number][0] | 'other' {
  return INEXACT_CODES.find(([, pattern]) => pattern.test(reason))?.[0] ?? 'other'
}

function hasText({ content, reasoning, refusal, toolCalls }: Completion): boolean {
  return Boolean(content) || Boolean(reasoning) || Boolean(refusal) || toolCalls.length > 0
}

function findWrongId(ids: readonly number[], vocabularySize = MAX_TOKEN_ID + 1): string | undefined {
  const wrong = ids.find((id) => !isTokenId(id) || id >= vocabularySize)
  if (wrong === undefined) return undefined
  return isTokenId(wrong)
    ? `the engine reported token id ${wrong}, but the vocabulary has ${vocabularySize}`
    : 'the engine reported a token id that is no id'
}

function isLogprob(logprob: number): boolean {
  return Number.isFinite(logprob) && logprob <= MAX_LOGPROB && logprob > MISSING_LOGPROB
}
