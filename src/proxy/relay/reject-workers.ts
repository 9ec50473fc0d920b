import { CLOSE } from '../../protocol/worker/protocol.ts'
import type { RelaySocket } from './relay-socket.ts'

/** What a proxy does with a worker that dials in although the proxy reaches its engines itself. */
export function rejectWorkers(socket: Pick<RelaySocket, 'close'>): void {
  socket.close(CLOSE.notRelayMode, 'this proxy is not in relay mode')
}
