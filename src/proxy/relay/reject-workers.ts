import { CLOSE } from '../../protocol/worker/protocol.ts'
import type { RelaySocket } from './relay-socket.ts'

/** Closes the socket of a worker that connects although the proxy is not in relay mode. */
export function rejectWorkers(socket: Pick<RelaySocket, 'close'>): void {
  socket.close(CLOSE.notRelayMode, 'this proxy is not in relay mode')
}
