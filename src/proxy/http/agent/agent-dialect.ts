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

/** A dialect of the agent routes: functions that convert its wire format to canonical form and back. */
export interface AgentDialect {
  /** The name of the dialect in recorded turns. */
  name: string
  /** Converts the body of a request to canonical form. @throws ProxyError `invalid_request`, `unsupported` */
  lower(body: unknown, memo: PartMemo): DialectRequest
  /** Builds the body of a complete response. @param completions one, or as many as the request asked for */
  buildResponse(
    identity: ResponseIdentity,
    responseOptions: ResponseOptions,
    ...completions: readonly [Completion, ...Completion[]]
  ): object
  /** Returns the writer of a stream. */
  createStreamWriter(identity: ResponseIdentity, responseOptions: ResponseOptions): StreamWriter
  /** Returns the writer of a stream of several choices; absent if the dialect does not support choices. */
  createChoicesWriter?(
    identity: ResponseIdentity,
    responseOptions: ResponseOptions,
    count: number,
  ): StreamWriter<ChoiceEvents>
  /** Returns the text of the event for an error after a stream has begun. */
  formatStreamError(error: ProxyError): string
  /** Returns the body of an error response. */
  buildErrorBody(error: ProxyError): object
  /** Returns the text of a keep-alive for a silent stream; it must reset the idle timers of clients. */
  keepAlive(): string
  /** The content type of a stream. Default: that of server-sent events. */
  streamType?: string
  /** Returns the response headers that identify the turn. */
  getHeaders(turnId: string): Record<string, string>
}

/** A converter of generation events to the text of a stream. */
export interface StreamWriter<Batch = readonly GenerationEvent[]> {
  write(batch: Batch): string
}
