/**
 * The worker's side of one WebSocket: sends the hello, waits for the ack, and terminates the socket if the proxy
 * becomes silent.
 */
import { isIPv4, type LookupFunction } from 'node:net'
import WebSocket, { type ClientOptions } from 'ws'
import type { Clock } from '../base/clock.ts'
import { logEvent } from '../base/log-events.ts'
import type { ContextLogger } from '../base/logger.ts'
import { detachBuffer } from '../protocol/json/detach-buffer.ts'
import { type Frame, helloAckV2, parseFrame } from '../protocol/worker/frames.ts'
import {
  CLOSE,
  HELLO_TIMEOUT_MS,
  MAX_FRAME_BYTES,
  MAX_PENDING_PONGS,
  MISSED_HEARTBEATS,
  type WorkerHelloAckV2,
  type WorkerHelloV2,
} from '../protocol/worker/protocol.ts'
import type { FrameJson } from '../protocol/worker/request-frames.ts'
import type { FrameContent, ProxyCache } from './worker-cache.ts'

/** The options of a WebSocket. */
interface DialOptions extends ClientOptions {
  /** Resolves the URL's host; `ws` passes the function to the socket. */
  lookup?: LookupFunction
}

/** A function that opens a WebSocket of the package `ws`. */
export type SocketDialer = (url: string, options: DialOptions) => WebSocket

/** Opens a WebSocket over the network. */
export const dialOut: SocketDialer = (url, options) => new WebSocket(url, options)

/** The options of a {@link ProxyConnection}, and callbacks for its frames. */
export interface ProxyConnectionOptions {
  /** The URL of the proxy's `/ws/worker`. */
  url: string
  /** The address to dial, if the URL's host has several; undefined: any of them. */
  address: string | undefined
  apiKey: string | undefined
  /** Certificate authorities (PEM); undefined: those of Node.js. */
  ca: string[] | undefined
  clock: Clock
  memory: ProxyCache
  dial: SocketDialer
  logger: ContextLogger<{ worker_id: string; proxy: string; address: string | undefined }>
  /** Returns the hello for this connection, which lists the current requests. */
  createHello(): WorkerHelloV2
  /** Called when the proxy has accepted the hello. */
  onGreeted(ack: WorkerHelloAckV2): void
  /** Called for each frame after the ack. @param json parts of a request that are available as JSON bytes */
  onFrame(frame: Frame, json?: FrameJson): void
}

/** The end of a connection. */
export interface ConnectionEnd {
  /** The duration of the connection from the ack on, in milliseconds; 0: there was no ack. */
  heldMs: number
  code: number
  reason: string
  /** Whether the proxy rejected the key, or the absence of one. */
  keyRejected: boolean
}

/** How long the worker waits for the proxy's side of the closing handshake. */
const CLOSE_TIMEOUT_MS = 2_000

/**
 * Generates a mask of zeros, which `ws` does not apply on either side: this saves 0.5 ms for the prompt ids of a long
 * request. Masks protect the caches of old intermediaries against pages in browsers; here, only the worker sends
 * frames.
 */
function createNoMask(mask: Buffer): void {
  mask.fill(0)
}

/**
 * Returns a lookup that resolves every host to this address. The URL keeps its host name, which certificates and
 * reverse proxies require.
 */
function createFixedLookup(address: string): LookupFunction {
  const family = isIPv4(address) ? 4 : 6
  return (_host, { all }, found) => (all ? found(null, [{ address, family }]) : found(null, address, family))
}

/** One connection to a proxy, from dialing to its end. */
export class ProxyConnection {
  /** Resolves when the socket is closed, for whatever reason. */
  readonly ended: Promise<ConnectionEnd>
  readonly #options: ProxyConnectionOptions
  readonly #socket: WebSocket
  #greetedAtMs: number | undefined
  #lastReceivedMs: number
  #silenceMs = HELLO_TIMEOUT_MS
  /** The connection of the WebSocket, once it is open. */
  #connection: { readonly bytesRead: number } | undefined
  /** The bytes that the connection had received at the last sign of life. */
  #bytesRead = 0
  #cancelWatch: (() => void) | undefined
  #trouble = ''
  #keyRejected = false
  /** The number of pongs that the socket has not written yet. */
  #pendingPongs = 0

  constructor(options: ProxyConnectionOptions) {
    this.#options = options
    this.#lastReceivedMs = options.clock.nowMs()
    this.#socket = options.dial(options.url, {
      maxPayload: MAX_FRAME_BYTES,
      perMessageDeflate: false,
      generateMask: createNoMask,
      ...(options.ca && { ca: options.ca }),
      ...(options.address !== undefined && { lookup: createFixedLookup(options.address) }),
      ...(options.apiKey !== undefined && { headers: { authorization: `Bearer ${options.apiKey}` } }),
    })
    this.#socket.on('upgrade', ({ socket }) => {
      this.#connection = socket
      this.#bytesRead = socket.bytesRead
    })
    this.#socket.on('open', () => this.#guard(() => this.#socket.send(JSON.stringify(options.createHello()))))
    this.#socket.on('message', (data, isBinary) => {
      let read: FrameContent | undefined
      const frame = parseFrame(data, isBinary, (bytes) => {
        read = options.memory.read(bytes)
        return read.value
      })
      // The new parts of the frame, which may have hundreds of kilobytes, have been copied.
      if (Buffer.isBuffer(data)) detachBuffer(data)
      this.#guard(() => this.#onMessage(frame, read?.json))
    })
    this.#socket.on('ping', () => this.#receive())
    this.#socket.on('unexpected-response', (_request, { statusCode }) => this.#onNoSocket(statusCode))
    // A close event with the details follows each error.
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

  /** Disconnects for good: the proxy does not wait for the worker to reconnect. */
  leave(): void {
    if (this.#greetedAtMs === undefined) this.#socket.terminate()
    else this.#close(CLOSE.done, 'the worker has finished')
  }

  /** Runs a handler. A defect in it, such as a failed assertion, ends this connection instead of the process. */
  #guard(handle: () => void): void {
    try {
      handle()
    } catch (err) {
      logEvent(this.#options.logger, 'proxy_connection_failed', { err })
      this.#trouble = 'the worker failed to handle a frame'
      this.#socket.terminate()
    }
  }

  /** Handles an HTTP response, from the proxy or an intermediary, that does not open a WebSocket. */
  #onNoSocket(status = 0): void {
    this.#keyRejected = status === 401 || status === 403
    this.#trouble = `HTTP ${status}${this.#keyRejected ? ': pass a valid key with --worker-key' : ' and no WebSocket'}`
    this.#socket.terminate()
  }

  #onMessage(frame: Frame | undefined, json: FrameJson | undefined): void {
    this.#receive()
    if (frame === undefined) this.#reject('the proxy sent a frame that is not JSON with a type')
    else if (frame.type === 'ping') this.#sendPong()
    else if (this.#greetedAtMs !== undefined) this.#options.onFrame(frame, json)
    else if (helloAckV2.isValid(frame)) this.#greeted(frame)
    else this.#reject(`the proxy does not support this protocol: ${helloAckV2.explain(frame)}`)
  }

  /** Responds to a ping, unless the proxy does not read the earlier pongs. */
  #sendPong(): void {
    if (this.#pendingPongs >= MAX_PENDING_PONGS) return
    this.#pendingPongs += 1
    this.#socket.send('{"type":"pong"}', () => {
      this.#pendingPongs -= 1
    })
  }

  #greeted(ack: WorkerHelloAckV2): void {
    this.#greetedAtMs = this.#options.clock.nowMs()
    this.#silenceMs = ack.heartbeat_ms * MISSED_HEARTBEATS
    this.#bytesRead = this.#connection?.bytesRead ?? 0
    this.#watchSilence(this.#silenceMs)
    this.#options.onGreeted(ack)
  }

  #reject(reason: string): void {
    this.#trouble = reason
    this.#close(CLOSE.protocolError, reason.slice(0, 100))
  }

  /** Closes the socket. If the proxy does not respond to the close frame in time, terminates the socket. */
  #close(code: number, reason: string): void {
    this.#socket.close(code, reason)
    this.#cancelWatch?.()
    this.#cancelWatch = this.#options.clock.after(CLOSE_TIMEOUT_MS, () => this.#socket.terminate())
  }

  #receive(): void {
    this.#lastReceivedMs = this.#options.clock.nowMs()
  }

  /**
   * Terminates the connection if the proxy is silent. The proxy pings at each heartbeat, so a connection without pings
   * is dead even if the socket is open. A part of a frame is a sign of life, too: pings wait until a large frame has
   * arrived.
   */
  #watchSilence(delayMs: number): void {
    this.#cancelWatch?.()
    this.#cancelWatch = this.#options.clock.after(delayMs, () => {
      const bytesRead = this.#connection?.bytesRead ?? 0
      const isArriving = bytesRead > this.#bytesRead
      this.#bytesRead = bytesRead
      const silentMs = this.#options.clock.nowMs() - this.#lastReceivedMs
      if (silentMs < this.#silenceMs) return this.#watchSilence(this.#silenceMs - silentMs)
      if (isArriving) return this.#watchSilence(this.#silenceMs)
      this.#trouble = `the proxy was silent for ${silentMs} ms`
      this.#socket.terminate()
    })
  }

  #end(code: number, reason: string): ConnectionEnd {
    this.#cancelWatch?.()
    const greetedAtMs = this.#greetedAtMs
    const heldMs = greetedAtMs === undefined ? 0 : this.#options.clock.nowMs() - greetedAtMs
    return { heldMs, code, reason: reason || this.#trouble, keyRejected: this.#keyRejected }
  }
}
