import type { ProxyError } from '../../../base/errors.ts'
import type { Completion } from '../../../protocol/canonical/completion.ts'
import type { GenerationEvent } from '../../../protocol/canonical/events.ts'
import type { PartMemo } from '../../../protocol/canonical/request-reader.ts'
import type { ChoiceEvents } from '../../dialects/common/choices.ts'
import type {
  DialectRequest,
  ResponseIdentity,
  ResponseOptions,
} from '../../dialects/common/dialect-request.ts'

/** A dialect for the agent routes: pure functions that convert its wire format to canonical form and back. */
export interface AgentDialect {
  /** The dialect's name in the store. */
  name: string
  lower(body: unknown, memo: PartMemo): DialectRequest
  /** @param completions one, or as many as the request asked for */
  buildResponse(
    identity: ResponseIdentity,
    responseOptions: ResponseOptions,
    ...completions: readonly [Completion, ...Completion[]]
  ): object
  createStreamWriter(identity: ResponseIdentity, responseOptions: ResponseOptions): StreamWriter
  /** Returns the writer of a stream of several choices. Present if the dialect supports them. */
  createChoicesWriter?(
    identity: ResponseIdentity,
    responseOptions: ResponseOptions,
    count: number,
  ): StreamWriter<ChoiceEvents>
  /** Returns the text of the event for an error after the beginning of a stream. */
  formatStreamError(error: ProxyError): string
  /** Returns the body of an error. */
  buildErrorBody(error: ProxyError): object
  /** Returns the text of a keep-alive for a silent stream, which clients' idle timers must count. */
  keepAlive(): string
  /** The content type of a stream; default: that of server-sent events. */
  streamType?: string
  /** Returns the headers that identify a response's turn. */
  getHeaders(turnId: string): Record<string, string>
}

/** Converts events to the text to send. */
export interface StreamWriter<Batch = readonly GenerationEvent[]> {
  write(batch: Batch): string
}
