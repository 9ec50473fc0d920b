import { ProxyError } from '../../../../base/errors.ts'
import type { EventSink, GenerationEnd, GenerationEvent } from '../../../../protocol/canonical/events.ts'
import type { GenerationRequest } from '../../../../protocol/canonical/request.ts'
import { CompletionReader } from './completion-reader.ts'
import type { EngineConnection } from './connection.ts'
import type { BodyReader, EngineResponse } from './engine-response.ts'
import { joinChunks } from './join-chunks.ts'
import { getSentPromptTokenIds, getShownAlternatives, wantsLogprobs } from './request.ts'
import { SseParser } from './sse.ts'

const DONE = /^\s*\[DONE\]\s*$/

/**
 * Pushes the events of an engine's response to `request` to `sink`. The response determines whether it is streamed:
 * some engines respond completely although a stream was requested.
 * @throws as EngineClient.generate
 */
export function readCompletion(
  connection: EngineConnection,
  request: GenerationRequest,
  response: EngineResponse,
  sink: EventSink,
): Promise<void> {
  const { promptLists: lists } = request
  const sent = getSentPromptTokenIds(request)
  const reader = new CompletionReader({
    engine: connection.name,
    wantsLogprobs: wantsLogprobs(request),
    ...(request.record && { record: request.record }),
    alternatives: getShownAlternatives(request),
    expertsStart: request.expertsStart,
    wantsIdsAsTokens: request.body.return_tokens_as_token_ids === true,
    sentPromptTokenIds: sent,
    readPrompt: lists && ((bytes, start, end) => lists.read(bytes, start, end)),
    redact: connection.endpoint.redact,
  })
  return readResponse(
    reader,
    connection,
    response,
    sent === undefined ? watchPromptIds(sink, connection) : sink,
  )
}

/** Returns a sink that forwards events to `sink` and counts whether completions report the ids of their prompt. */
function watchPromptIds(sink: EventSink, { missingPromptIdCounter }: EngineConnection): EventSink {
  let isReported = false
  return {
    write(batch) {
      for (const event of batch)
        if (event.type !== 'delta' && event.promptTokenIds !== undefined) isReported = true
      if (batch.at(-1)?.type === 'end') missingPromptIdCounter.countCompletion(isReported)
      return sink.write(batch)
    },
  }
}

/** A converter of the JSON of one response to events. */
interface EventParser {
  /**
   * Reads one event of a stream, or the complete response, as text or UTF-8, and appends its events to `events`. Must
   * not retain references to the bytes.
   * @param isComplete whether it is the complete response; default: no
   */
  read(json: string | Buffer, events: GenerationEvent[], isComplete?: boolean): void
  /** Returns the event that ends the response, after the last chunk. */
  end(): GenerationEnd
}

/** An {@link EventParser} that also detects changes of the weights. */
export interface JsonReader extends EventParser {
  /** Whether the engine has reported another weight version than that of the start event. */
  readonly haveWeightsChanged: boolean
}

/**
 * Wraps a reader so that its exceptions are failures of the engine: a response may contain any value at any depth,
 * which readers do not check everywhere.
 */
function wrapReader(reader: JsonReader, engine: string): EventParser {
  return {
    read(json, events, isComplete) {
      try {
        reader.read(json, events, isComplete)
      } catch (cause) {
        if (cause instanceof ProxyError) throw cause
        const message = `the response of the engine at ${engine} is malformed`
        throw new ProxyError('engine_failed', message, { cause })
      }
    },
    end: () => reader.end(),
  }
}

/**
 * Pushes the events of a JSON response, complete or as server-sent events until `[DONE]`, to `sink`.
 * @throws as EngineClient.generate
 */
export async function readResponse(
  unguarded: JsonReader,
  connection: EngineConnection,
  response: EngineResponse,
  sink: EventSink,
): Promise<void> {
  const reader = wrapReader(unguarded, connection.name)
  const contentType = response.headers['content-type']?.toString() ?? ''
  try {
    if (!contentType.includes('text/event-stream'))
      return await pushComplete(reader, joinChunks(await connection.readChunks(response)), sink)
    const stream = new EventStreamReader(connection, reader, sink)
    await response.pushTo(stream)
    if (!stream.isDone) await sink.write([reader.end()])
  } catch (thrown) {
    // A response that was cut has no end event, which would report the version of its last tokens.
    if (thrown instanceof ProxyError) thrown.weightsChanged ||= unguarded.haveWeightsChanged
    throw thrown
  }
}

async function pushComplete(reader: EventParser, json: Buffer, sink: EventSink): Promise<void> {
  const events: GenerationEvent[] = []
  reader.read(json, events, true)
  try {
    events.push(reader.end())
  } catch (thrown) {
    // Tokens sampled before the engine failed are recorded.
    await sink.write(events)
    throw thrown
  }
  await sink.write(events)
}

/** A reader of server-sent events, which is done after `[DONE]`. */
class EventStreamReader implements BodyReader {
  isDone = false
  readonly #parser: SseParser
  readonly #reader: EventParser
  readonly #sink: EventSink

  constructor({ name, maxResponseBytes }: EngineConnection, reader: EventParser, sink: EventSink) {
    this.#parser = new SseParser(name, maxResponseBytes)
    this.#reader = reader
    this.#sink = sink
  }

  read(chunks: readonly Buffer[]): Promise<void> | undefined {
    const events: GenerationEvent[] = []
    try {
      for (const chunk of chunks) this.#readChunk(chunk, events)
      if (this.isDone) events.push(this.#reader.end())
    } catch (thrown) {
      // Tokens sampled before the engine failed are recorded.
      const accepted = events.length > 0 ? this.#sink.write(events) : undefined
      if (accepted === undefined) throw thrown
      return accepted.then(() => {
        throw thrown
      })
    }
    return events.length > 0 ? this.#sink.write(events) : undefined
  }

  #readChunk(chunk: Buffer, events: GenerationEvent[]): void {
    if (this.isDone) return
    for (const json of this.#parser.push(chunk)) {
      if (json.length === 0) continue
      if (typeof json === 'string' && DONE.test(json)) {
        this.isDone = true
        return
      }
      this.#reader.read(json, events)
    }
  }
}
