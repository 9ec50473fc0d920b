/** What chat and completion answers have in common on vLLM's wire. */
import type { Completion } from '../../protocol/canonical/completion.ts'
import type { GenerationDelta, GenerationEnd, GenerationEvent } from '../../protocol/canonical/events.ts'
import type { PromptIds } from '../../protocol/token-ids/prompt-ids.ts'
import type { AnyCompletionRequest } from './request-schemas.ts'

/** The fields that stand at the head of an answer and of each of its chunks. */
export interface AnswerHead {
  id: string
  object: string
  created: number
  model: string
}

/** What the request asked to see. */
export interface AnswerFields {
  tokenIds: boolean
  logprobs: boolean
  streamUsage: boolean
}

/** `stream_options` without `include_usage` asks for usage, in vLLM. */
export function readAnswerFields(body: AnyCompletionRequest & { logprobs?: unknown }): AnswerFields {
  const { logprobs, stream_options: streamOptions } = body
  return {
    tokenIds: body.return_token_ids === true,
    logprobs: logprobs !== undefined && logprobs !== null && logprobs !== false,
    streamUsage: streamOptions ? streamOptions.include_usage !== false : false,
  }
}

/** How one kind of answer looks; the fields of a kind are the same in both. */
export interface AnswerFormat {
  idPrefix: string
  wholeObject: string
  chunkObject: string
  whole(head: AnswerHead, completion: Completion, fields: AnswerFields): object
  chunks(fields: AnswerFields): ChunkMaker
}

/** Makes the chunks of one stream, as members of the JSON object whose first members are the head's. */
export interface ChunkMaker {
  /** @returns undefined if this kind of answer begins with its first token */
  first(promptTokenIds: PromptIds | undefined): object | undefined
  /**
   * @param end set with the last token, which tells the finish reason
   * @returns undefined if nothing of the delta is for the client
   */
  delta(delta: GenerationDelta, end: GenerationEnd | undefined): object | undefined
}

/**
 * Turns events into the text of server-sent events. One text for a whole batch, so that tokens that are ready together
 * cost one write; and the head is made once, because it is most of a chunk.
 */
export class StreamText {
  readonly #head: string
  readonly #chunks: ChunkMaker
  readonly #fields: AnswerFields

  constructor(head: AnswerHead, chunks: ChunkMaker, fields: AnswerFields) {
    this.#head = `data: ${JSON.stringify(head).slice(0, -1)},`
    this.#chunks = chunks
    this.#fields = fields
  }

  write(events: readonly GenerationEvent[]): string {
    let text = ''
    for (let i = 0; i < events.length; i++) {
      const event = events[i]!
      if (event.type === 'start') text += this.#chunk(this.#chunks.first(event.promptTokenIds))
      else if (event.type === 'end') text += this.#end(event)
      else text += this.#chunk(this.#chunks.delta(event, endBehind(events, i)))
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

/** vLLM tells the finish reason with the last token. */
function endBehind(events: readonly GenerationEvent[], index: number): GenerationEnd | undefined {
  const next = events[index + 1]
  return next?.type === 'end' ? next : undefined
}
