import type { IncomingHttpHeaders } from 'node:http'
import type { Dispatcher } from 'undici'
import { PushLoop, type PushSource } from '../../../../base/push-loop.ts'
import { convertRequestError, convertResponseError } from './failures.ts'

/** A reader of the body of a response. */
export interface BodyReader {
  /**
   * Receives the bytes of one read of the socket, in the chunks of the HTTP framing.
   * @returns undefined if the reader accepts more data, otherwise a promise that resolves once it does
   * @throws any error, as may the promise; the connection is then closed, by which an engine detects the cancellation
   */
  read(chunks: readonly Buffer[]): Promise<void> | undefined
  /** Whether the reader needs no more bytes, although the body may not have ended. */
  readonly isDone: boolean
}

/** The longest wait for the end of the body once its reader is done, so that the connection can be reused. */
const DRAIN_MS = 1_000

/**
 * A response of an engine, as a handler of undici's lowest interface: its bytes are pushed to the reader, with one
 * microtask for each read of the socket and without a stream between. While the reader accepts nothing, reading stops
 * after one buffer (64 KiB), and the engine's socket fills up.
 */
export class EngineResponse implements Dispatcher.DispatchHandler, PushSource {
  statusCode = 0
  headers: IncomingHttpHeaders = {}
  readonly #engine: string
  readonly #signal: AbortSignal
  readonly #head = Promise.withResolvers<void>()
  readonly #body = Promise.withResolvers<void>()
  #controller: Dispatcher.DispatchController | undefined
  #reader: BodyReader | undefined
  #chunks: Buffer[] = []
  /** Closed when the outcome is known: further bytes are ignored. */
  readonly #loop = new PushLoop(this)
  /** The end of the body, with the error that caused it, if any; undefined: the body has not ended. */
  #end: { error?: unknown } | undefined
  #drain: NodeJS.Timeout | undefined

  /**
   * @param engine the engine's name, for errors
   * @param signal cancels the request
   */
  constructor(engine: string, signal: AbortSignal) {
    this.#engine = engine
    this.#signal = signal
    this.#body.promise.catch(() => {})
    signal.addEventListener('abort', this.#onAbort, { once: true })
  }

  /**
   * Resolves when the status and the headers have arrived.
   * @throws ProxyError `engine_unreachable`, `engine_failed`, `engine_lost`, `engine_timeout`; after an abort
   *   `signal.reason`
   */
  get head(): Promise<void> {
    return this.#head.promise
  }

  /**
   * Pushes the body to a reader until it has ended or the reader is done. To be called once, after {@link head}.
   * @throws ProxyError as {@link head}, and errors of the reader
   */
  pushTo(reader: BodyReader): Promise<void> {
    this.#reader = reader
    this.#schedule()
    return this.#body.promise
  }

  onRequestStart(controller: Dispatcher.DispatchController): void {
    this.#controller = controller
    if (this.#loop.isClosed) controller.abort(this.#signal.reason)
  }

  onResponseStart(_: unknown, statusCode: number, headers: IncomingHttpHeaders): void {
    if (statusCode < 200) return
    this.statusCode = statusCode
    this.headers = headers
    this.#head.resolve()
  }

  onResponseData(_: unknown, chunk: Buffer): void {
    if (this.#loop.isClosed) return
    this.#chunks.push(chunk)
    this.#schedule()
  }

  onResponseEnd(): void {
    this.#end = {}
    this.#schedule()
    clearTimeout(this.#drain)
  }

  onResponseError(_: unknown, thrown: Error): void {
    clearTimeout(this.#drain)
    if (this.statusCode === 0) {
      this.#close()
      this.#head.reject(convertRequestError(this.#engine, thrown))
    } else {
      this.#end = { error: convertResponseError(this.#engine, thrown) }
      this.#schedule()
    }
  }

  #schedule(): void {
    if (this.#reader !== undefined) this.#loop.schedule()
  }

  /** Pushes the chunks that have arrived to the reader. */
  push(): Promise<void> | undefined {
    const reader = this.#reader!
    const chunks = this.#chunks
    this.#chunks = []
    const accepted = chunks.length > 0 ? reader.read(chunks) : undefined
    if (accepted !== undefined) return accepted
    if (reader.isDone) this.#finish()
    else if (this.#end?.error !== undefined) this.fail(this.#end.error)
    else if (this.#end) this.#finish()
    return undefined
  }

  pause(): void {
    this.#controller?.pause()
  }

  resume(): void {
    this.#controller?.resume()
  }

  /**
   * Ends the reading of the body. If the body has not ended, its end is awaited for {@link DRAIN_MS}, because a
   * connection is reused only after its response has ended.
   */
  #finish(): void {
    this.#close()
    this.#body.resolve()
    if (this.#end === undefined) this.#drain = setTimeout(() => this.#disconnect(), DRAIN_MS).unref()
  }

  /** Fails the response, and closes the connection. */
  fail(thrown: unknown): void {
    if (this.#loop.isClosed) return
    this.#close()
    this.#body.reject(thrown)
    this.#disconnect(thrown)
  }

  readonly #onAbort = (): void => {
    if (this.#loop.isClosed) return
    const { reason } = this.#signal
    this.#close()
    this.#head.reject(reason)
    this.#body.reject(reason)
    this.#disconnect(reason)
  }

  #close(): void {
    this.#loop.close()
    this.#chunks = []
    this.#signal.removeEventListener('abort', this.#onAbort)
  }

  #disconnect(reason?: unknown): void {
    if (this.#end === undefined)
      this.#controller?.abort(reason instanceof Error ? reason : new Error('cancelled'))
  }
}
