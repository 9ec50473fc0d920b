/**
 * Complete and streamed responses of OpenAI Completions (legacy):
 * https://platform.openai.com/docs/api-reference/completions/object
 */
import type { Completion } from '../../../protocol/canonical/completion.ts'
import type { GenerationEvent, GenerationStart } from '../../../protocol/canonical/events.ts'
import type { TokenLogprob, Usage } from '../../../protocol/canonical/messages.ts'
import { sumUsage } from '../common/choices.ts'
import type { ResponseIdentity, ResponseOptions } from '../common/dialect-request.ts'

/** Returns the body of a complete response with all choices. */
export function buildTextCompletion(
  identity: ResponseIdentity,
  responseOptions: ResponseOptions,
  ...completions: readonly [Completion, ...Completion[]]
): object {
  const [first] = completions
  const usage = completions.length === 1 ? first.end?.usage : sumUsage(completions)
  return {
    ...buildRoot(identity, first.start?.model),
    choices: completions.map((completion, index) => toChoice(completion, index, responseOptions)),
    usage,
  }
}

function toChoice(completion: Completion, index: number, responseOptions: ResponseOptions): object {
  const { start, end } = completion
  return {
    index,
    text: completion.content ?? '',
    logprobs: responseOptions.logprobs ? buildLegacyLogprobs(completion.logprobsContent, 0) : null,
    finish_reason: end?.finishReason ?? null,
    stop_reason: end?.stopReason,
    ...(responseOptions.tokenIds && { token_ids: completion.tokenIds, ...buildPromptIds(start) }),
  }
}

function buildRoot(identity: ResponseIdentity, model: string | undefined): object {
  return {
    id: `cmpl-${identity.turnId}`,
    object: 'text_completion',
    created: identity.createdS,
    model: model ?? identity.model,
  }
}

/**
 * Returns the field of the prompt's ids. It belongs to a choice, as in vLLM's completions; in chat it is at the root.
 */
function buildPromptIds(start: GenerationStart | undefined): object {
  return { prompt_token_ids: start?.promptTokenIds ? Array.from(start.promptTokenIds) : null }
}

/**
 * Converts entries in the form of Chat Completions to the parallel lists of this API.
 * @param offset the start of the first token in the text, in characters
 */
function buildLegacyLogprobs(entries: readonly TokenLogprob[], offset: number): object {
  let position = offset
  return {
    tokens: entries.map((entry) => entry.token),
    token_logprobs: entries.map((entry) => entry.logprob),
    top_logprobs: entries.map((entry) =>
      Object.fromEntries(entry.top_logprobs.map((top) => [top.token, top.logprob])),
    ),
    text_offset: entries.map((entry) => {
      const start = position
      position += entry.token.length
      return start
    }),
  }
}

/** A writer of `text_completion` server-sent events. */
export class CompletionStreamWriter {
  readonly #identity: ResponseIdentity
  readonly #responseOptions: ResponseOptions
  #start: GenerationStart | undefined
  #promptIdsSent = false
  #offset = 0

  constructor(identity: ResponseIdentity, responseOptions: ResponseOptions) {
    this.#identity = identity
    this.#responseOptions = responseOptions
  }

  write(events: readonly GenerationEvent[]): string {
    let text = ''
    for (const event of events) {
      if (event.type === 'start') this.#start = event
      else if (event.type === 'end') {
        const stop = event.stopReason === undefined ? {} : { stop_reason: event.stopReason }
        text += this.#chunk({ text: '', logprobs: null, finish_reason: event.finishReason, ...stop })
        if (this.#identity.choice === undefined) text += this.finish(event.usage)
      } else {
        const entries = this.#responseOptions.logprobs ? event.logprobsContent : undefined
        const ids = this.#responseOptions.tokenIds ? event.tokenIds : undefined
        if (!event.content && !entries && !ids) continue
        text += this.#chunk({
          text: event.content ?? '',
          logprobs: entries ? buildLegacyLogprobs(entries, this.#offset) : null,
          finish_reason: null,
          token_ids: ids,
        })
        this.#offset += event.content?.length ?? 0
      }
    }
    return text
  }

  /** Returns the end of the stream, for all choices. */
  finish(usage: Usage | undefined): string {
    const last = this.#responseOptions.streamUsage && usage ? this.#event({ choices: [], usage }) : ''
    return `${last}data: [DONE]\n\n`
  }

  #chunk(choice: object): string {
    const ids = this.#responseOptions.tokenIds && !this.#promptIdsSent ? buildPromptIds(this.#start) : {}
    this.#promptIdsSent = true
    return this.#event({ choices: [{ index: this.#identity.choice ?? 0, ...choice, ...ids }] })
  }

  #event(fields: object): string {
    return `data: ${JSON.stringify({ ...buildRoot(this.#identity, this.#start?.model), ...fields })}\n\n`
  }
}
