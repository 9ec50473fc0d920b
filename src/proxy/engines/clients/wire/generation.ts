import { ProxyError } from '../../../../base/errors.ts'
import type {
  GenerationEnd,
  GenerationEvent,
  GenerationStream,
} from '../../../../protocol/canonical/events.ts'
import type { GenerationRequest } from '../../../../protocol/canonical/request.ts'
import { AnswerReader } from './answer-reader.ts'
import type { EngineConnection, EngineResponse } from './connection.ts'
import { joinForNow } from './joined.ts'
import { sentPromptTokenIds, shownAlternatives, wantsLogprobs } from './request.ts'
import { type EventData, SseParser } from './sse.ts'

const DONE = /^\s*\[DONE\]\s*$/

/**
 * Yields the events of an engine's response to `request`. The response determines whether it is streamed: some engines
 * respond completely although a stream was requested.
 * @throws as EngineClient.generate
 */
export async function* readAnswer(
  connection: EngineConnection,
  request: GenerationRequest,
  response: EngineResponse,
  signal: AbortSignal,
): GenerationStream {
  const { promptLists: lists } = request
  const sent = sentPromptTokenIds(request)
  const reader = new AnswerReader({
    engine: connection.name,
    wantsLogprobs: wantsLogprobs(request),
    ...(request.record && { record: request.record }),
    alternatives: shownAlternatives(request),
    expertsStart: request.expertsStart,
    wantsIdsAsTokens: request.body.return_tokens_as_token_ids === true,
    sentPromptTokenIds: sent,
    readPrompt: lists && ((bytes, start, end) => lists.read(bytes, start, end)),
    redact: connection.endpoint.redact,
  })
  const events = readWith(reader, connection, response, signal)
  if (sent !== undefined) yield* events
  else yield* watchPromptIds(events, connection)
}

/** Counts whether completions report the ids of their prompt. */
async function* watchPromptIds(
  events: GenerationStream,
  { promptReports }: EngineConnection,
): GenerationStream {
  let isReported = false
  for await (const batch of events) {
    isReported ||= batch.some((event) => event.type !== 'delta' && event.promptTokenIds !== undefined)
    // Before the batch: the consumer may stop after the end.
    if (batch.at(-1)?.type === 'end') promptReports.note(isReported)
    yield batch
  }
}

/** A converter of the JSON of one response to events. */
export interface JsonReader {
  /**
   * Reads one event of a stream, or the complete response, as text or UTF-8, and appends its events to `events`. Must
   * not keep references to the bytes.
   * @param isWhole whether it is the complete response; default: no
   */
  read(json: string | Buffer, events: GenerationEvent[], isWhole?: boolean): void
  /** Returns the event that ends the response, after the last chunk. */
  end(): GenerationEnd
}

/** Wraps a reader: its exceptions are failures of the engine, since a response may contain any value at any depth. */
function guarded(reader: JsonReader, engine: string): JsonReader {
  return {
    read(json, events, isWhole) {
      try {
        reader.read(json, events, isWhole)
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
 * Yields the events of a JSON response, complete or as server-sent events until `[DONE]`.
 * @throws as EngineClient.generate
 */
export async function* readWith(
  unguarded: JsonReader,
  connection: EngineConnection,
  response: EngineResponse,
  signal: AbortSignal,
): GenerationStream {
  const reader = guarded(unguarded, connection.name)
  const contentType = response.headers['content-type']?.toString() ?? ''
  if (contentType.includes('text/event-stream')) yield* streamed(connection, response, signal, reader)
  else yield whole(await connection.pieces(response, signal), reader)
}

function whole(json: readonly Buffer[], reader: JsonReader): GenerationEvent[] {
  const events: GenerationEvent[] = []
  reader.read(joinForNow(json), events, true)
  events.push(reader.end())
  return events
}

async function* streamed(
  connection: EngineConnection,
  response: EngineResponse,
  signal: AbortSignal,
  reader: JsonReader,
): GenerationStream {
  const parser = new SseParser(connection.name, connection.maxAnswerBytes)
  let done = false
  for await (const chunk of connection.chunks(response, signal, () => done)) {
    const events: GenerationEvent[] = []
    try {
      done = readEvents(parser.push(chunk), reader, events)
    } catch (thrown) {
      // Tokens sampled before the engine failed are recorded.
      if (events.length > 0) yield events
      throw thrown
    }
    if (events.length > 0) yield events
    if (done) break
  }
  yield [reader.end()]
}

/** Reads the events of a chunk. @returns whether the stream is done */
function readEvents(data: EventData[], reader: JsonReader, events: GenerationEvent[]): boolean {
  for (const json of data) {
    if (json.length === 0) continue
    if (typeof json === 'string' && DONE.test(json)) return true
    reader.read(json, events)
  }
  return false
}
