/**
 * The subset of a WebSocket that the relay uses; a socket of `ws` implements it. The server that accepts sockets is in
 * `../http`, so that the relay does not depend on it.
 */
export interface RelaySocket {
  send(text: string): void
  /**
   * Sends a frame. With `binary: false`, bytes are sent as a text frame and must be UTF-8.
   * @param sent called when the socket no longer needs the bytes: they have been written, or the socket has failed
   */
  send(data: string | Buffer, options: { binary: boolean }, sent?: () => void): void
  /** Sends a ping. @param sent called as for {@link send} */
  ping(data: undefined, mask: undefined, sent: () => void): void
  close(code: number, reason: string): void
  /** Closes the connection without a closing handshake. */
  terminate(): void
  on(event: 'message', listener: (data: { toString(): string }, isBinary: boolean) => void): unknown
  on(event: 'pong', listener: () => void): unknown
  on(event: 'close', listener: (code: number, reason: { toString(): string }) => void): unknown
}

/** The connection of a socket, as far as the relay uses it; a socket of `node:net` implements it. */
export interface ByteCounter {
  /** The number of bytes received so far. */
  readonly bytesRead: number
}
