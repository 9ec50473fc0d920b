import { once } from 'node:events'
import { connect, type Socket } from 'node:net'
import { connect as connectTls } from 'node:tls'

/** A connection that sends given bytes and collects what it receives. */
export class RawConnection {
  readonly socket: Socket
  received = ''
  /** Resolves when the connection has closed, with everything that was received. */
  readonly closed: Promise<string>

  private constructor(socket: Socket) {
    this.socket = socket
    socket.on('error', () => {})
    socket.on('data', (data) => {
      this.received += data
    })
    this.closed = new Promise((resolve) => socket.once('close', () => resolve(this.received)))
  }

  /**
   * Opens a connection.
   * @param url `http:` or `https:`; certificates are not verified
   */
  static async open(url: string): Promise<RawConnection> {
    const { protocol, hostname: host, port } = new URL(url)
    const target = { host, port: Number(port) }
    const secure = protocol === 'https:'
    const socket = secure ? connectTls({ ...target, rejectUnauthorized: false }) : connect(target)
    await once(socket, secure ? 'secureConnect' : 'connect')
    return new RawConnection(socket)
  }

  send(text: string | Buffer): this {
    this.socket.write(text)
    return this
  }

  /** Waits until this text has been received. */
  async until(text: string): Promise<void> {
    while (!this.received.includes(text)) {
      if (this.socket.destroyed) throw new Error(`closed before ${text} came: ${this.received}`)
      await Promise.race([new Promise((resolve) => this.socket.once('data', resolve)), this.closed])
    }
  }
}

/**
 * Sends bytes over a separate connection.
 * @returns everything that was received until it closed, at most after `ms`
 */
export async function sendRaw(url: string, bytes: string, ms: number): Promise<string> {
  const connection = await RawConnection.open(url)
  connection.send(Buffer.from(bytes, 'latin1'))
  const timer = setTimeout(() => connection.socket.destroy(), ms)
  const received = await connection.closed
  clearTimeout(timer)
  return received
}
