/** The worker's side of one WebSocket: says hello, waits for the ack, and ends the socket when it falls silent. */
import { isIPv4, type LookupFunction } from 'node:net'
import WebSocket, { type ClientOptions } from 'ws'
import type { Clock } from '../base/clock.ts'
import { detachBuffer } from '../protocol/json/detach-buffer.ts'
import { type Frame, helloAckV2, parseFrame } from '../protocol/worker/frames.ts'
import {
  CLOSE,
  HELLO_TIMEOUT_MS,
  MAX_FRAME_BYTES,
  MISSED_HEARTBEATS,
  type WorkerHelloAckV2,
  type WorkerHelloV2,
} from '../protocol/worker/protocol.ts'
import type { FrameJson } from '../protocol/worker/request-frames.ts'
import type { FrameContent, ProxyCache } from './worker-cache.ts'

interface DialOptions extends ClientOptions {
  /** Says which address the URL's host has; `ws` hands it on to the socket. */
  lookup?: LookupFunction
}

/** Opens a WebSocket, of the package `ws`. */
export type Dial = (url: string, options: DialOptions) => WebSocket

export const dialOut: Dial = (url, options) => new WebSocket(url, options)

export interface ProxyConnectionOptions {
  /** Of the proxy's `/ws/worker`. */
  url: string
  /** Where the URL's host stands for several proxies: the address of this one; undefined: any. */
  address: string | undefined
  apiKey: string | undefined
  /** Authorities, PEM; undefined: those of Node.js. */
  ca: string[] | undefined
  clock: Clock
  memory: ProxyCache
  dial: Dial
  /** The hello for this connection: it names the calls that are held at this moment. */
  hello(): WorkerHelloV2
  greeted(ack: WorkerHelloAckV2): void
  /** A frame after the ack. @param json of a request what is there as bytes */
  received(frame: Frame, json?: FrameJson): void
}

export interface ConnectionEnd {
  /** How long the connection held after the ack; 0: it never came to that. */
  heldMs: number
  code: number
  reason: string
  /** The proxy wants a key, or another one. */
  keyRefused: boolean
}

const CLOSE_TIMEOUT_MS = 2_000

/**
 * A mask of zeros, which `ws` on both sides then need not apply: 0.5 ms for the prompt ids of a long call. Masks keep a
 * page in a browser from planting text in the caches of old intermediaries; nobody writes here but the worker.
 */
function noMask(mask: Buffer): void {
  mask.fill(0)
}

/** The name stays in the URL, so that certificates and routers on the way see it. */
function always(address: string): LookupFunction {
  const family = isIPv4(address) ? 4 : 6
  return (_host, { all }, found) => (all ? found(null, [{ address, family }]) : found(null, address, family))
}

export class ProxyConnection {
  /** Resolves when the socket is gone, however that came. */
  readonly ended: Promise<ConnectionEnd>
  readonly #options: ProxyConnectionOptions
  readonly #socket: WebSocket
  #greetedAtMs: number | undefined
  #lastHeardMs: number
  #silenceMs = HELLO_TIMEOUT_MS
  #cancelWatch: (() => void) | undefined
  #trouble = ''
  #keyRefused = false

  constructor(options: ProxyConnectionOptions) {
    this.#options = options
    this.#lastHeardMs = options.clock.nowMs()
    this.#socket = options.dial(options.url, {
      maxPayload: MAX_FRAME_BYTES,
      perMessageDeflate: false,
      generateMask: noMask,
      ...(options.ca && { ca: options.ca }),
      ...(options.address !== undefined && { lookup: always(options.address) }),
      ...(options.apiKey !== undefined && { headers: { authorization: `Bearer ${options.apiKey}` } }),
    })
    this.#socket.on('open', () => this.#socket.send(JSON.stringify(options.hello())))
    this.#socket.on('message', (data, isBinary) => {
      let read: FrameContent | undefined
      const frame = parseFrame(data, isBinary, (bytes) => {
        read = options.memory.read(bytes)
        return read.value
      })
      // Of a request of hundreds of kilobytes, what is new has been copied.
      if (Buffer.isBuffer(data)) detachBuffer(data)
      this.#onMessage(frame, read?.json)
    })
    this.#socket.on('ping', () => this.#heard())
    this.#socket.on('unexpected-response', (_request, { statusCode }) => this.#onNoSocket(statusCode))
    // A close follows each error and says the rest.
    this.#socket.on('error', (error) => {
      this.#trouble ||= error.message
    })
    this.ended = new Promise((resolve) => {
      this.#socket.on('close', (code, reason) => resolve(this.#end(code, reason.toString())))
    })
    this.#watchSilence(this.#silenceMs)
  }

  send(text: string): void {
    this.#socket.send(text)
  }

  /** Leaves: the proxy need not wait for this worker. */
  leave(): void {
    if (this.#greetedAtMs === undefined) this.#socket.terminate()
    else this.#close(CLOSE.done, 'the worker has finished')
  }

  /** The proxy, or something before it, has answered without opening a WebSocket. */
  #onNoSocket(status = 0): void {
    this.#keyRefused = status === 401 || status === 403
    this.#trouble = `HTTP ${status}${this.#keyRefused ? ': give a valid key with --worker-key' : ' and no WebSocket'}`
    this.#socket.terminate()
  }

  #onMessage(frame: Frame | undefined, json: FrameJson | undefined): void {
    this.#heard()
    if (frame === undefined) this.#refuse('the proxy sent a frame that is not JSON with a type')
    else if (frame.type === 'ping') this.send('{"type":"pong"}')
    else if (this.#greetedAtMs !== undefined) this.#options.received(frame, json)
    else if (helloAckV2.passes(frame)) this.#greeted(frame)
    else this.#refuse(`the proxy does not speak this protocol: ${helloAckV2.explain(frame)}`)
  }

  #greeted(ack: WorkerHelloAckV2): void {
    this.#greetedAtMs = this.#options.clock.nowMs()
    this.#silenceMs = ack.heartbeat_ms * MISSED_HEARTBEATS
    this.#watchSilence(this.#silenceMs)
    this.#options.greeted(ack)
  }

  #refuse(why: string): void {
    this.#trouble = why
    this.#close(CLOSE.protocolError, why.slice(0, 100))
  }

  /** A proxy that does not answer the close is not waited for. */
  #close(code: number, reason: string): void {
    this.#socket.close(code, reason)
    this.#cancelWatch?.()
    this.#cancelWatch = this.#options.clock.after(CLOSE_TIMEOUT_MS, () => this.#socket.terminate())
  }

  #heard(): void {
    this.#lastHeardMs = this.#options.clock.nowMs()
  }

  /** The proxy pings at each heartbeat; a connection without them is dead, whatever the socket says. */
  #watchSilence(delayMs: number): void {
    this.#cancelWatch?.()
    this.#cancelWatch = this.#options.clock.after(delayMs, () => {
      const silentMs = this.#options.clock.nowMs() - this.#lastHeardMs
      if (silentMs < this.#silenceMs) return this.#watchSilence(this.#silenceMs - silentMs)
      this.#trouble = `the proxy was silent for ${silentMs} ms`
      this.#socket.terminate()
    })
  }

  #end(code: number, reason: string): ConnectionEnd {
    this.#cancelWatch?.()
    const greetedAtMs = this.#greetedAtMs
    const heldMs = greetedAtMs === undefined ? 0 : this.#options.clock.nowMs() - greetedAtMs
    return { heldMs, code, reason: reason || this.#trouble, keyRefused: this.#keyRefused }
  }
}
