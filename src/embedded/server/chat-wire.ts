/** Builds chat responses as vLLM does (`vllm/entrypoints/openai/chat_completion/{protocol,serving}.py`). */
import type { Completion } from '../../protocol/canonical/completion.ts'
import type { GenerationDelta, GenerationEnd } from '../../protocol/canonical/events.ts'
import type { PromptIds } from '../../protocol/token-ids/prompt-ids.ts'
import type { ChunkBuilder, ResponseFields, ResponseFormat, ResponseHead } from './response-wire.ts'

export const chatFormat: ResponseFormat = {
  idPrefix: 'chatcmpl-',
  completeObject: 'chat.completion',
  chunkObject: 'chat.completion.chunk',
  buildComplete: toChatCompletion,
  createChunkBuilder: (fields) => new ChatChunks(fields),
}

function toChatCompletion(head: ResponseHead, completion: Completion, fields: ResponseFields): object {
  const { start, end, toolCalls } = completion
  return {
    ...head,
    choices: [
      {
        index: 0,
        message: {
          role: 'assistant',
          content: completion.content ?? (toolCalls.length > 0 ? null : ''),
          refusal: null,
          annotations: null,
          audio: null,
          function_call: null,
          ...(toolCalls.length > 0 ? { tool_calls: toolCalls } : {}),
          reasoning: completion.reasoning,
        },
        logprobs: fields.logprobs ? { content: completion.logprobsContent } : null,
        finish_reason: end?.finishReason,
        stop_reason: end?.stopReason ?? null,
        token_ids: fields.tokenIds ? completion.tokenIds : null,
      },
    ],
    service_tier: null,
    system_fingerprint: null,
    usage: { ...end?.usage, prompt_tokens_details: null },
    prompt_logprobs: null,
    prompt_token_ids: fields.tokenIds ? Array.from(start?.promptTokenIds ?? []) : null,
    kv_transfer_params: null,
  }
}

/** A builder of the chunks of a chat response. */
class ChatChunks implements ChunkBuilder {
  readonly #fields: ResponseFields

  constructor(fields: ResponseFields) {
    this.#fields = fields
  }

  buildFirst(promptTokenIds: PromptIds | undefined): object {
    const delta = { role: 'assistant', content: '' }
    return {
      choices: [{ index: 0, delta, logprobs: null, finish_reason: null }],
      prompt_token_ids: this.#fields.tokenIds ? Array.from(promptTokenIds ?? []) : null,
    }
  }

  buildDelta(event: GenerationDelta, end: GenerationEnd | undefined): object | undefined {
    const { tokenIds, logprobs } = this.#fields
    const delta = buildMessageDelta(event)
    // If the parser buffers a token's text, a chunk is sent only to clients that requested ids or logprobs.
    if (Object.keys(delta).length === 0 && end === undefined && !tokenIds && !logprobs) return undefined
    return {
      choices: [
        {
          index: 0,
          delta,
          logprobs: logprobs ? { content: event.logprobsContent ?? [] } : null,
          finish_reason: end?.finishReason ?? null,
          ...(end ? { stop_reason: end.stopReason ?? null } : {}),
          token_ids: tokenIds ? (event.tokenIds ?? []) : null,
        },
      ],
    }
  }
}

function buildMessageDelta({ content, reasoning, toolCalls }: GenerationDelta): object {
  const delta: { content?: string; reasoning?: string; tool_calls?: unknown } = {}
  if (content !== undefined) delta.content = content
  if (reasoning !== undefined) delta.reasoning = reasoning
  if (toolCalls !== undefined) delta.tool_calls = toolCalls
  return delta
}
