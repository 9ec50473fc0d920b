/**
 * What the proxy's side needs of a WebSocket; a socket of `ws` is one. The server that accepts sockets lives in
 * `../http`, so that nothing here depends on how they come in.
 */
export interface RelaySocket {
  send(text: string): void
  /**
   * Bytes are a text frame in UTF-8 if `binary` is false.
   * @param sent called when they are not needed any more: they have been written, or never will be
   */
  send(data: string | Buffer, options: { binary: boolean }, sent?: () => void): void
  ping(): void
  close(code: number, reason: string): void
  /** Ends the connection without the other side's consent. */
  terminate(): void
  on(event: 'message', listener: (data: { toString(): string }, isBinary: boolean) => void): unknown
  on(event: 'pong', listener: () => void): unknown
  on(event: 'close', listener: (code: number, reason: { toString(): string }) => void): unknown
}
