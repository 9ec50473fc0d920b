import { once } from 'node:events'
import WebSocket from 'ws'
import { until } from './until.ts'

type RawFrame = Record<string, unknown> & { type: string }

/** A socket at `/ws/worker` that sends exactly what a test specifies. */
export class RawWorker {
  readonly socket: WebSocket
  /** Every received frame, in order. */
  readonly frames: RawFrame[] = []
  /** Resolves with the close code. */
  readonly closed: Promise<number>

  constructor(url: string) {
    this.socket = new WebSocket(url)
    this.socket.on('error', () => {})
    this.socket.on('message', (data) => {
      this.frames.push(JSON.parse(data.toString()))
    })
    this.closed = once(this.socket, 'close').then(([code]) => code)
  }

  /** Connects with a version-2 hello. @param more overrides its fields */
  static async hello(url: string, more: object = {}): Promise<RawWorker> {
    const worker = new RawWorker(url)
    await once(worker.socket, 'open')
    worker.send({
      type: 'worker_hello',
      worker_id: 'w',
      protocol: 2,
      capabilities: ['cancel', 'resume'],
      models: [{ id: 'm' }],
      max_concurrency: 4,
      weight_version: null,
      epoch: 1,
      requests: [],
      ...more,
    })
    return worker
  }

  send(frame: object | string): void {
    this.socket.send(typeof frame === 'string' ? frame : JSON.stringify(frame))
  }

  /** Returns the first frame of this type that was not returned before, waiting for it if necessary. */
  async next(type: string): Promise<RawFrame> {
    return until(() => {
      const index = this.frames.findIndex((frame) => frame.type === type)
      return index >= 0 && this.frames.splice(index, 1)[0]
    })
  }

  /** Sends a chunk with one text delta. */
  chunk(requestId: unknown, seq: number, content: string, more: object = {}): void {
    this.send({ type: 'completion_chunk', request_id: requestId, seq, deltas: [{ content }], ...more })
  }

  /** Completes a request. */
  end(requestId: unknown, seq: number): void {
    this.send({
      type: 'completion_response',
      request_id: requestId,
      seq,
      finish_reason: 'stop',
      error: null,
    })
  }
}
