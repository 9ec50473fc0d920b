/**
 * Builds responses of the legacy completions API as vLLM does
 * (`vllm/entrypoints/openai/completion/{protocol,serving}.py`).
 */
import type { Completion } from '../../protocol/canonical/completion.ts'
import type { GenerationDelta, GenerationEnd } from '../../protocol/canonical/events.ts'
import type { TokenLogprob } from '../../protocol/canonical/messages.ts'
import type { PromptIds } from '../../protocol/token-ids/prompt-ids.ts'
import type { ChunkBuilder, ResponseFields, ResponseFormat, ResponseHead } from './response-wire.ts'

export const completionFormat: ResponseFormat = {
  idPrefix: 'cmpl-',
  completeObject: 'text_completion',
  chunkObject: 'text_completion',
  buildComplete: toCompletion,
  createChunkBuilder: (fields) => new CompletionChunks(fields),
}

function toCompletion(head: ResponseHead, completion: Completion, fields: ResponseFields): object {
  const { start, end } = completion
  return {
    ...head,
    choices: [
      {
        index: 0,
        text: completion.content ?? '',
        logprobs: fields.logprobs ? listLogprobs(completion.logprobsContent, 0) : null,
        finish_reason: end?.finishReason,
        stop_reason: end?.stopReason ?? null,
        token_ids: fields.tokenIds ? completion.tokenIds : null,
        prompt_logprobs: null,
        prompt_token_ids: fields.tokenIds ? Array.from(start?.promptTokenIds ?? []) : null,
      },
    ],
    service_tier: null,
    system_fingerprint: null,
    usage: { ...end?.usage, prompt_tokens_details: null },
    kv_transfer_params: null,
  }
}

/** A builder of the chunks of a completion response. */
class CompletionChunks implements ChunkBuilder {
  readonly #fields: ResponseFields
  /** The ids of the prompt, which are sent with the first token; null after it. */
  #promptTokenIds: number[] | null = null
  /** The length of the text so far. */
  #textOffset = 0

  constructor(fields: ResponseFields) {
    this.#fields = fields
  }

  buildFirst(promptTokenIds: PromptIds | undefined): undefined {
    if (this.#fields.tokenIds) this.#promptTokenIds = Array.from(promptTokenIds ?? [])
  }

  buildDelta(event: GenerationDelta, end: GenerationEnd | undefined): object {
    const choice = {
      index: 0,
      text: event.content ?? '',
      logprobs: this.#fields.logprobs ? this.#logprobs(event.logprobsContent ?? []) : null,
      finish_reason: end?.finishReason ?? null,
      stop_reason: end?.stopReason ?? null,
      token_ids: this.#fields.tokenIds ? (event.tokenIds ?? []) : null,
      prompt_token_ids: this.#promptTokenIds,
    }
    this.#promptTokenIds = null
    return { choices: [choice], usage: null }
  }

  #logprobs(entries: readonly TokenLogprob[]): object {
    const logprobs = listLogprobs(entries, this.#textOffset)
    for (const { token } of entries) this.#textOffset += token.length
    return logprobs
  }
}

/**
 * Converts a list of logprobs entries to parallel lists. The alternatives of a token include the token itself.
 */
function listLogprobs(entries: readonly TokenLogprob[], firstOffset: number): object {
  let offset = firstOffset
  return {
    text_offset: entries.map(({ token }) => {
      offset += token.length
      return offset - token.length
    }),
    token_logprobs: entries.map(({ logprob }) => logprob),
    tokens: entries.map(({ token }) => token),
    top_logprobs: entries.map((entry) =>
      Object.fromEntries([entry, ...entry.top_logprobs].map(({ token, logprob }) => [token, logprob])),
    ),
  }
}
