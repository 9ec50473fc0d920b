/**
 * A worker of protocol version 1, written from the design's table without the proxy's source: tests fail if the two
 * disagree about the wire format.
 */
import { once } from 'node:events'
import WebSocket from 'ws'

interface V1Request {
  type: 'completion_request'
  request_id: string
  session_id: string
  messages: { role: string; content: string }[]
  [field: string]: unknown
}

type V1Response = Record<string, unknown>

/** A worker that serves requests with `respond`, which returns the response fields that differ from their defaults. */
export class V1Worker {
  readonly requests: V1Request[] = []
  /** Each received frame, in order. */
  readonly frames: Record<string, unknown>[] = []
  readonly socket: WebSocket
  readonly #respond: (request: V1Request) => V1Response | Promise<V1Response>

  constructor(
    url: string,
    respond: (request: V1Request) => V1Response | Promise<V1Response>,
    onFrame?: () => void,
  ) {
    this.#respond = respond
    this.socket = new WebSocket(url, { maxPayload: 100 * 1024 * 1024 })
    this.socket.on('error', () => {})
    this.socket.on('message', (data) => {
      const frame = JSON.parse(data.toString())
      this.frames.push(frame)
      onFrame?.()
      if (frame.type === 'ping') this.send({ type: 'pong' })
      if (frame.type === 'completion_request') void this.#serve(frame)
    })
  }

  /**
   * Connects, sends the hello and waits for the reply.
   * @param hello the worker's id, or the fields of its hello
   */
  static async connect(
    url: string,
    hello: string | Record<string, unknown>,
    respond: (request: V1Request) => V1Response | Promise<V1Response>,
  ): Promise<V1Worker> {
    const { promise: greeted, resolve } = Promise.withResolvers<void>()
    const worker = new V1Worker(url, respond, resolve)
    await once(worker.socket, 'open')
    worker.send({ type: 'worker_hello', ...(typeof hello === 'string' ? { worker_id: hello } : hello) })
    await greeted
    return worker
  }

  send(frame: object): void {
    this.socket.send(JSON.stringify(frame))
  }

  close(): Promise<unknown> {
    const closed = once(this.socket, 'close')
    this.socket.close()
    return closed
  }

  async #serve(request: V1Request): Promise<void> {
    this.requests.push(request)
    const response = await this.#respond(request)
    this.send({
      type: 'completion_response',
      request_id: request.request_id,
      token_ids: [],
      log_probs: [],
      completion_text: '',
      content_text: null,
      tool_calls: null,
      finish_reason: 'stop',
      error: null,
      ...response,
    })
  }
}
