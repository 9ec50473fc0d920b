import type { IncomingMessage } from 'node:http'
import { PassThrough } from 'node:stream'
import { discardBody, hasBody, OVERSIZED_BODY } from '../transport/discard-body.ts'

/** Stands for the id of a message without a signature. */
const UNSIGNED = 'unsigned'

interface RequestBodyOptions {
  /** The maximum length of a body that is kept. */
  limitBytes: number
  /** Charges the caller for the kept bytes; throws if they are too many. */
  setMemory(bytes: number): void
  /** The id of the message in which it was sent to a node that was lost, if the forwarding node reports one. */
  lostMessageId?: string | undefined
}

/**
 * The body of a request that is forwarded to other nodes. A node receives it as it arrives. It is kept until the
 * response begins, so that it can be sent to another node if the first one is lost.
 */
export class RequestBody {
  readonly #incoming: IncomingMessage
  readonly #options: RequestBodyOptions
  #lostMessageId: string | undefined
  #messageId = UNSIGNED
  #stream: PassThrough | undefined
  #complete: Buffer | undefined
  #kept: Buffer[] | undefined = []
  #keptBytes = 0

  constructor(incoming: IncomingMessage, options: RequestBodyOptions) {
    this.#incoming = incoming
    this.#options = options
    this.#lostMessageId = options.lostMessageId
  }

  /** The id of the message in which the body was sent before, to a node that was lost. */
  get lostMessageId(): string | undefined {
    return this.#lostMessageId
  }

  /**
   * Returns the body for a node: a stream that {@link start} fills, all bytes, or null for no body.
   * @param messageId of the message in which it is sent; undefined: it is not signed
   */
  open(messageId?: string): PassThrough | Buffer | null {
    this.#messageId = messageId ?? UNSIGNED
    if (!hasBody(this.#incoming)) return null
    if (this.#complete !== undefined) return this.#complete
    this.#stream = new PassThrough()
    // undici aborts the request and reports the error there.
    this.#stream.on('error', () => {})
    return this.#stream
  }

  /** Keeps a copy of what others read: this node serves the request, and may find that another one does. */
  copy(): void {
    this.#incoming.on('data', (chunk: Buffer) => this.#keep(Buffer.from(chunk)))
  }

  /** Starts to read the body once there is a connection to the node. */
  start(): void {
    const incoming = this.#incoming
    const stream = this.#stream
    if (stream === undefined) return
    incoming.on('data', this.#keep)
    incoming.pipe(stream)
    incoming.once('close', () => {
      if (!incoming.readableEnded) stream.destroy(new Error('the client has left'))
    })
  }

  /** Stops sending. Many clients read a response only after they have sent their whole body, so the rest is read. */
  stop(): void {
    if (this.#stream === undefined) return
    this.#incoming.unpipe(this.#stream)
    this.#stream = undefined
    discardBody(this.#incoming, OVERSIZED_BODY)
    this.#incoming.resume()
  }

  /** Discards the kept bytes. */
  release(): void {
    this.#kept = undefined
    this.#complete = undefined
    this.#incoming.off('data', this.#keep)
    this.#options.setMemory(0)
  }

  /**
   * Waits for the rest of the body.
   * @param isLost whether the node that it was sent to was lost, and may have executed the request
   * @returns whether all of it was kept, so that it can be sent
   */
  async complete(isLost: boolean): Promise<boolean> {
    const incoming = this.#incoming
    const isRead = () => incoming.readableEnded || !hasBody(incoming)
    if (!isRead() && !incoming.destroyed)
      await new Promise<void>((resolve) => {
        for (const event of ['end', 'close']) incoming.once(event, () => resolve())
      })
    if (this.#kept === undefined || !isRead()) return false
    this.#complete = Buffer.concat(this.#kept)
    this.#kept = []
    if (isLost) this.#lostMessageId ??= this.#messageId
    return true
  }

  readonly #keep = (chunk: Buffer): void => {
    this.#keptBytes += chunk.length
    try {
      if (this.#keptBytes > this.#options.limitBytes) this.release()
      else this.#options.setMemory(this.#keptBytes)
      this.#kept?.push(chunk)
    } catch {
      this.release()
    }
  }
}
