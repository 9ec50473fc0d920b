import { EventEmitter } from 'node:events'
import type { RelaySocket } from '../../src/proxy/relay/relay-socket.ts'

/** A worker's socket whose peer is the test. */
export class FakeRelaySocket extends EventEmitter implements RelaySocket {
  readonly sent: { type: string; [field: string]: unknown }[] = []
  pings = 0
  closedWith: number | undefined
  /** The callbacks of frames that wait until the peer reads; undefined: it reads at once. */
  #unread: (() => void)[] | undefined

  send(text: string, _options?: object, sent?: () => void): void {
    this.sent.push(JSON.parse(text))
    this.#write(sent)
  }

  ping(_data: undefined, _mask: undefined, sent: () => void): void {
    this.pings += 1
    this.#write(sent)
  }

  /** Stops reading: what is sent from now on waits. */
  stopReading(): void {
    this.#unread = []
  }

  /** Reads what waits, and everything from now on. */
  resumeReading(): void {
    const unread = this.#unread
    this.#unread = undefined
    for (const sent of unread ?? []) sent()
  }

  #write(sent: () => void = () => {}): void {
    if (this.#unread) this.#unread.push(sent)
    else sent()
  }

  close(code: number): void {
    this.closedWith ??= code
  }

  terminate(): void {
    this.emit('close', 1006, '')
  }

  /** Delivers a frame from the peer. */
  emitFrame(frame: object): void {
    this.emit('message', Buffer.from(JSON.stringify(frame)), false)
  }
}
