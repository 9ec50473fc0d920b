/** The common parts of chat and completion responses in vLLM's wire format. */
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

/** The optional parts of a response that a request asks for. */
export interface ResponseFields {
  tokenIds: boolean
  logprobs: boolean
  streamUsage: boolean
}

/** Parses the requested parts. As in vLLM, `stream_options` without `include_usage` requests usage. */
export function readResponseFields(body: AnyCompletionRequest & { logprobs?: unknown }): ResponseFields {
  const { logprobs, stream_options: streamOptions } = body
  return {
    tokenIds: body.return_token_ids === true,
    logprobs: logprobs !== undefined && logprobs !== null && logprobs !== false,
    streamUsage: streamOptions ? streamOptions.include_usage !== false : false,
  }
}

/** The format of chat or of completion responses. */
export interface ResponseFormat {
  idPrefix: string
  /** The value of `object` in complete responses. */
  completeObject: string
  /** The value of `object` in chunks. */
  chunkObject: string
  buildComplete(head: ResponseHead, completion: Completion, fields: ResponseFields): object
  createChunkBuilder(fields: ResponseFields): ChunkBuilder
}

/** A builder of the chunks of one stream, without the fields of {@link ResponseHead}. */
export interface ChunkBuilder {
  /** Builds the chunk before the first token. @returns undefined if there is none in this format */
  buildFirst(promptTokenIds: PromptIds | undefined): object | undefined
  /**
   * Builds the chunk of a token.
   * @param end the end of the completion, if this is the last token; its chunk contains the finish reason
   * @returns undefined if there is nothing to send
   */
  buildDelta(delta: GenerationDelta, end: GenerationEnd | undefined): object | undefined
}

/**
 * A formatter of events as server-sent events. A batch of events is one text, so that it needs one write. The head is
 * serialized once, because it is most of a chunk.
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

  /** Formats a batch of events. */
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

/** Returns the end event after a delta, because vLLM sends the finish reason with the last token. */
function findEndAfter(events: readonly GenerationEvent[], index: number): GenerationEnd | undefined {
  const next = events[index + 1]
  return next?.type === 'end' ? next : undefined
}
