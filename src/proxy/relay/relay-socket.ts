/**
 * The subset of a WebSocket that the relay uses; a socket of `ws` implements it. The server that accepts sockets is in
 * `../http`, so that the relay does not depend on it.
 */
export interface RelaySocket {
  send(text: string): void
  /**
   * Sends a frame. Bytes are a text frame in UTF-8 if `binary` is false.
   * @param sent called when the bytes are no longer needed: they have been written, or never will be
   */
  send(data: string | Buffer, options: { binary: boolean }, sent?: () => void): void
  ping(): void
  close(code: number, reason: string): void
  /** Closes the connection without a closing handshake. */
  terminate(): void
  on(event: 'message', listener: (data: { toString(): string }, isBinary: boolean) => void): unknown
  on(event: 'pong', listener: () => void): unknown
  on(event: 'close', listener: (code: number, reason: { toString(): string }) => void): unknown
}
