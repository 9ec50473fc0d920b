/** Common parts of chat and completion responses in vLLM's wire format. */
import type { Completion } from '../../protocol/canonical/completion.ts'
import type { GenerationDelta, GenerationEnd, GenerationEvent } from '../../protocol/canonical/events.ts'
import type { PromptIds } from '../../protocol/token-ids/prompt-ids.ts'
import type { AnyCompletionRequest } from './request-schemas.ts'

/** The first fields of a response and of each of its chunks. */
export interface ResponseHead {
  id: string
  object: string
  created: number
  model: string
}

/** Optional parts of the response that were requested. */
export interface ResponseFields {
  tokenIds: boolean
  logprobs: boolean
  streamUsage: boolean
}

/** Parses the requested parts. In vLLM, `stream_options` without `include_usage` requests usage. */
export function readResponseFields(body: AnyCompletionRequest & { logprobs?: unknown }): ResponseFields {
  const { logprobs, stream_options: streamOptions } = body
  return {
    tokenIds: body.return_token_ids === true,
    logprobs: logprobs !== undefined && logprobs !== null && logprobs !== false,
    streamUsage: streamOptions ? streamOptions.include_usage !== false : false,
  }
}

/** The format of one kind of response; both kinds have the same fields. */
export interface ResponseFormat {
  idPrefix: string
  wholeObject: string
  chunkObject: string
  buildComplete(head: ResponseHead, completion: Completion, fields: ResponseFields): object
  createChunkBuilder(fields: ResponseFields): ChunkBuilder
}

/** Creates the chunks of one stream, as the members of the JSON object after those of the head. */
export interface ChunkBuilder {
  /** @returns undefined if this kind of response begins with its first token */
  buildFirst(promptTokenIds: PromptIds | undefined): object | undefined
  /**
   * @param end set with the last token, whose chunk contains the finish reason
   * @returns undefined if the delta contains nothing for the client
   */
  buildDelta(delta: GenerationDelta, end: GenerationEnd | undefined): object | undefined
}

/**
 * Formats events as server-sent events. A batch is one text, so that tokens that are ready together need one write; the
 * head is formatted once, because it is most of a chunk.
 */
export class StreamFormatter {
  readonly #head: string
  readonly #chunks: ChunkBuilder
  readonly #fields: ResponseFields

  constructor(head: ResponseHead, chunks: ChunkBuilder, fields: ResponseFields) {
    this.#head = `data: ${JSON.stringify(head).slice(0, -1)},`
    this.#chunks = chunks
    this.#fields = fields
  }

  write(events: readonly GenerationEvent[]): string {
    let text = ''
    for (let i = 0; i < events.length; i++) {
      const event = events[i]!
      if (event.type === 'start') text += this.#chunk(this.#chunks.buildFirst(event.promptTokenIds))
      else if (event.type === 'end') text += this.#end(event)
      else text += this.#chunk(this.#chunks.buildDelta(event, findEndAfter(events, i)))
    }
    return text
  }

  #end({ usage }: GenerationEnd): string {
    const usageChunk = this.#fields.streamUsage && usage ? this.#chunk({ choices: [], usage }) : ''
    return `${usageChunk}data: [DONE]\n\n`
  }

  #chunk(members: object | undefined): string {
    return members === undefined ? '' : `${this.#head}${JSON.stringify(members).slice(1)}\n\n`
  }
}

/** Returns the end event after a delta. vLLM sends the finish reason with the last token. */
function findEndAfter(events: readonly GenerationEvent[], index: number): GenerationEnd | undefined {
  const next = events[index + 1]
  return next?.type === 'end' ? next : undefined
}
