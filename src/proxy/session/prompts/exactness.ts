import type { Completion } from '../../../protocol/canonical/completion.ts'
import { NO_ENGINE } from '../../../protocol/canonical/events.ts'
import { isTokenId, MAX_TOKEN_ID } from '../../../protocol/token-ids/token-ids.ts'

/** The maximum logprob. It is above 0 because 32-bit sums of an engine may exceed 0 slightly. */
const MAX_LOGPROB = 1e-3
/**
 * The value that vLLM writes for minus infinity, which JSON lacks
 * (`vllm/entrypoints/openai/chat_completion/serving.py`). A sampled token cannot have it.
 */
const MISSING_LOGPROB = -9_999

/**
 * Returns the reason why a completion cannot be trained on; null: it can. It can if the prompt's ids are known, each
 * sampled token has an id and a logprob, and the engine's usage agrees with their numbers. Missing ids never count as
 * "no tokens", because engines lose ids in known ways, such as a tool parser that drops chunks or a flag that an old
 * version ignores.
 */
export function findInexactReason(completion: Completion): string | null {
  const { start, end, tokenIds, logprobs } = completion
  if (start === undefined) return 'the engine gave no answer'
  // A response without an engine has no tokens, so none is missing.
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

/** The stable code of each reason. */
const INEXACT_CODES = [
  ['no_answer', /gave no answer$/],
  ['prompt_ids_missing', /token ids of the prompt$/],
  ['completion_ids_missing', /token ids of the completion$/],
  ['counts_differ', /^the engine counted | token ids but \d+ logprobs$/],
  ['invalid_token_id', / token id /],
  ['invalid_logprob', / logprob that is none$/],
] as const

/** Returns the code of a reason. @param reason the result of {@link findInexactReason} */
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
