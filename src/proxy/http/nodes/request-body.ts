import type { IncomingMessage } from 'node:http'
import { PassThrough } from 'node:stream'
import { discardBody, hasBody, OVERSIZED_BODY } from '../transport/discard-body.ts'

/** The message id of a request that was sent without a signature. */
const UNSIGNED = 'unsigned'

interface RequestBodyOptions {
  /** The maximum length of a buffered body. */
  limitBytes: number
  /** Charges the buffered bytes to the caller; throws if they exceed its quota. */
  setMemory(bytes: number): void
  /** The id of the message in which another node sent the body to a node that crashed; undefined: none did. */
  lostMessageId?: string | undefined
}

/**
 * The body of a request that is forwarded to other nodes. A node receives it as it arrives. It is also buffered until
 * the response begins, so that it can be sent to another node if the first one crashes.
 */
export class RequestBody {
  readonly #incoming: IncomingMessage
  readonly #options: RequestBodyOptions
  #lostMessageId: string | undefined
  #messageId = UNSIGNED
  #stream: PassThrough | undefined
  #complete: Buffer | undefined
  #chunks: Buffer[] | undefined = []
  #bufferedBytes = 0

  constructor(incoming: IncomingMessage, options: RequestBodyOptions) {
    this.#incoming = incoming
    this.#options = options
    this.#lostMessageId = options.lostMessageId
  }

  /** The id of the message in which the body was sent before, to a node that crashed. */
  get lostMessageId(): string | undefined {
    return this.#lostMessageId
  }

  /**
   * Returns the body to send to a node: a stream that {@link start} fills, the buffered bytes, or null for no body.
   * @param messageId the id of the message in which it is sent; undefined: the message is not signed
   */
  open(messageId?: string): PassThrough | Buffer | null {
    this.#messageId = messageId ?? UNSIGNED
    if (!hasBody(this.#incoming)) return null
    if (this.#complete !== undefined) return this.#complete
    this.#stream = new PassThrough()
    // undici reports an error of the stream on the request, which it aborts.
    this.#stream.on('error', () => {})
    return this.#stream
  }

  /** Buffers the body while the handler of this node reads it, in case another node turns out to own the session. */
  copy(): void {
    this.#incoming.on('data', (chunk: Buffer) => this.#buffer(Buffer.from(chunk)))
  }

  /** Starts to read the body once there is a connection to the node. */
  start(): void {
    const incoming = this.#incoming
    const stream = this.#stream
    if (stream === undefined) return
    incoming.on('data', this.#buffer)
    incoming.pipe(stream)
    incoming.once('close', () => {
      if (!incoming.readableEnded) stream.destroy(new Error('the client has left'))
    })
  }

  /** Stops sending, and discards the rest: many clients read a response only after they have sent their whole body. */
  stop(): void {
    if (this.#stream === undefined) return
    this.#incoming.unpipe(this.#stream)
    this.#stream = undefined
    discardBody(this.#incoming, OVERSIZED_BODY)
    this.#incoming.resume()
  }

  /** Discards the buffered bytes. */
  release(): void {
    this.#chunks = undefined
    this.#complete = undefined
    this.#incoming.off('data', this.#buffer)
    this.#options.setMemory(0)
  }

  /**
   * Waits for the rest of the body.
   * @param isLost whether the node that received it crashed, and may have executed the request
   * @returns whether all of it is buffered, so that it can be sent again
   */
  async complete(isLost: boolean): Promise<boolean> {
    const incoming = this.#incoming
    const isRead = () => incoming.readableEnded || !hasBody(incoming)
    if (!isRead() && !incoming.destroyed)
      await new Promise<void>((resolve) => {
        for (const event of ['end', 'close']) incoming.once(event, () => resolve())
      })
    if (this.#chunks === undefined || !isRead()) return false
    this.#complete = Buffer.concat(this.#chunks)
    this.#chunks = []
    if (isLost) this.#lostMessageId ??= this.#messageId
    return true
  }

  readonly #buffer = (chunk: Buffer): void => {
    this.#bufferedBytes += chunk.length
    try {
      if (this.#bufferedBytes > this.#options.limitBytes) this.release()
      else this.#options.setMemory(this.#bufferedBytes)
      this.#chunks?.push(chunk)
    } catch {
      this.release()
    }
  }
}
