/**
 * Complete and streamed responses of OpenAI Chat Completions:
 * https://platform.openai.com/docs/api-reference/chat/object and …/chat-streaming. Token ids are in the fields of vLLM
 * (`choices[].token_ids`, `prompt_token_ids` at the root) and of LiteLLM (`provider_specific_fields`).
 */
import type { Completion } from '../../../protocol/canonical/completion.ts'
import type { GenerationDelta, GenerationEnd, GenerationEvent } from '../../../protocol/canonical/events.ts'
import type { Usage } from '../../../protocol/canonical/messages.ts'
import { sumUsage } from '../common/choices.ts'
import type { ResponseIdentity, ResponseOptions } from '../common/dialect-request.ts'

/** Returns the body of a complete response with all choices. `end` of each completion must be set. */
export function buildChatCompletion(
  identity: ResponseIdentity,
  responseOptions: ResponseOptions,
  ...completions: readonly [Completion, ...Completion[]]
): object {
  const [first] = completions
  const usage = completions.length === 1 ? first.end?.usage : sumUsage(completions)
  return {
    id: `chatcmpl-${identity.turnId}`,
    object: 'chat.completion',
    created: identity.createdS,
    model: first.start?.model ?? identity.model,
    choices: completions.map((completion, index) => toChoice(completion, index, responseOptions)),
    usage,
    ...(responseOptions.tokenIds && { prompt_token_ids: findPromptIds(first) }),
  }
}

function toChoice(completion: Completion, index: number, responseOptions: ResponseOptions): object {
  const { end, toolCalls } = completion
  const message = {
    role: 'assistant',
    content: completion.content ?? (hasOtherOutput(completion) ? null : ''),
    refusal: completion.refusal,
    ...(responseOptions.reasoning &&
      completion.reasoning !== null &&
      buildReasoningFields(completion.reasoning)),
    ...(toolCalls.length > 0 && { tool_calls: toolCalls }),
    ...completion.extra,
  }
  return {
    index,
    message,
    logprobs: responseOptions.logprobs ? { content: completion.logprobsContent, refusal: null } : null,
    finish_reason: end?.finishReason ?? null,
    stop_reason: end?.stopReason,
    ...(responseOptions.tokenIds && buildTokenFields(completion.tokenIds)),
  }
}

/**
 * Returns the reasoning under both names: current vLLM sends only `reasoning`; SGLang, LiteLLM and vLLM before 0.12
 * send `reasoning_content`.
 */
function buildReasoningFields(reasoning: string): object {
  return { reasoning_content: reasoning, reasoning }
}

/**
 * Returns whether a completion has output other than text. Its content is then null if it has no text, as in OpenAI's
 * API; without other output the content is an empty text, because agents expect text.
 */
function hasOtherOutput({ toolCalls, refusal, extra }: Completion): boolean {
  return toolCalls.length > 0 || refusal !== null || 'function_call' in extra || 'audio' in extra
}

function buildTokenFields(tokenIds: readonly number[]): object {
  return { token_ids: tokenIds, provider_specific_fields: { token_ids: tokenIds } }
}

function findPromptIds({ start }: Pick<Completion, 'start'>): number[] | null {
  return start?.promptTokenIds ? Array.from(start.promptTokenIds) : null
}

/** A writer of `chat.completion.chunk` server-sent events, for one batch of generation events at a time. */
export class ChatStreamWriter {
  readonly #identity: ResponseIdentity
  readonly #responseOptions: ResponseOptions
  #head = ''
  #tail = ''

  constructor(identity: ResponseIdentity, responseOptions: ResponseOptions) {
    this.#identity = identity
    this.#responseOptions = responseOptions
    this.#frame(identity.model)
  }

  /** Returns the text to send for these events; empty if none of them is visible. */
  write(events: readonly GenerationEvent[]): string {
    let text = ''
    for (const event of events) {
      if (event.type === 'delta') text += this.#delta(event)
      else if (event.type === 'end') text += this.#end(event)
      else {
        if (event.model) this.#frame(event.model)
        const ids = this.#responseOptions.tokenIds
          ? `,"prompt_token_ids":${JSON.stringify(findPromptIds({ start: event }))}`
          : ''
        text += this.#chunk('{"role":"assistant","content":""}', ',"logprobs":null,"finish_reason":null', ids)
      }
    }
    return text
  }

  /** Serializes the constant part of all chunks once, because a chunk is written for every token. */
  #frame(model: string): void {
    const { turnId, createdS, choice = 0 } = this.#identity
    const root = { id: `chatcmpl-${turnId}`, object: 'chat.completion.chunk', created: createdS, model }
    this.#head = `data: ${JSON.stringify(root).slice(0, -1)},"system_fingerprint":null,"choices":[{"index":${choice},"delta":`
    this.#tail = this.#responseOptions.streamUsage ? ',"usage":null}\n\n' : '}\n\n'
  }

  #chunk(delta: string, choiceFields: string, rootFields = ''): string {
    return `${this.#head}${delta}${choiceFields}}]${rootFields}${this.#tail}`
  }

  #delta(delta: GenerationDelta): string {
    const message = buildMessageDelta(delta, this.#responseOptions.reasoning)
    const tokens = this.#tokens(delta)
    if (message === '{}' && tokens === undefined) return ''
    return this.#chunk(message, `${tokens ?? ',"logprobs":null'},"finish_reason":null`)
  }

  /** Returns the choice's token fields; undefined if the agent did not request them or the delta has none. */
  #tokens(delta: GenerationDelta): string | undefined {
    const { logprobs, tokenIds } = this.#responseOptions
    const showLogprobs = logprobs && delta.logprobsContent !== undefined
    const showIds = tokenIds && delta.tokenIds !== undefined
    if (!showLogprobs && !showIds) return undefined
    const entries = showLogprobs ? JSON.stringify({ content: delta.logprobsContent, refusal: null }) : 'null'
    const ids = showIds ? `,${JSON.stringify(buildTokenFields(delta.tokenIds ?? [])).slice(1, -1)}` : ''
    return `,"logprobs":${entries}${ids}`
  }

  #end(end: GenerationEnd): string {
    const stop = end.stopReason === undefined ? '' : `,"stop_reason":${JSON.stringify(end.stopReason)}`
    const last = this.#chunk(
      '{}',
      `,"logprobs":null,"finish_reason":${JSON.stringify(end.finishReason)}${stop}`,
    )
    return this.#identity.choice === undefined ? last + this.finish(end.usage) : last
  }

  /** Returns the end of the stream, for all choices. */
  finish(usage: Usage | undefined): string {
    return `${this.#usage(usage)}data: [DONE]\n\n`
  }

  #usage(usage: Usage | undefined): string {
    if (!this.#responseOptions.streamUsage || !usage) return ''
    const beforeChoices = this.#head.slice(0, this.#head.lastIndexOf('"choices":'))
    return `${beforeChoices}"choices":[],"usage":${JSON.stringify(usage)}}\n\n`
  }
}

function buildMessageDelta(delta: GenerationDelta, showReasoning: boolean): string {
  const reasoning = showReasoning ? delta.reasoning : undefined
  // A fast path: most deltas contain only text, and there is one for every token.
  if ((delta.toolCalls ?? reasoning ?? delta.refusal ?? delta.extra) === undefined) {
    return delta.content === undefined ? '{}' : `{"content":${JSON.stringify(delta.content)}}`
  }
  return JSON.stringify({
    content: delta.content,
    ...(reasoning !== undefined && buildReasoningFields(reasoning)),
    refusal: delta.refusal,
    tool_calls: delta.toolCalls,
    ...delta.extra,
  })
}
