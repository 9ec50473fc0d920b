import { EventEmitter } from 'node:events'
import type { RelaySocket } from '../../src/proxy/relay/relay-socket.ts'

/** A worker's socket whose peer is the test. */
export class FakeRelaySocket extends EventEmitter implements RelaySocket {
  readonly sent: { type: string; [field: string]: unknown }[] = []
  pings = 0
  closedWith: number | undefined

  send(text: string): void {
    this.sent.push(JSON.parse(text))
  }

  ping(): void {
    this.pings += 1
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
