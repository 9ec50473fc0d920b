/**
 * A hostile unauthenticated client. It opens connections, attacks over each as the job specifies, and replaces closed
 * ones at the job's rate. The parent sends the process one job at a time.
 */
import { connect, type Socket } from 'node:net'
import { setPriority } from 'node:os'
import type { FloodJob, FloodKind, FloodResult } from '../parts/flood-job.ts'

/** A real attacker uses other machines: the flooder's CPU time must not reduce the agent's share of this one. */
const LOWEST_PRIORITY = 19
const TICK_MS = 10
const CHUNK = Buffer.alloc(64 * 1024, 'x')
const BODY_CHUNK = Buffer.concat([
  Buffer.from(`${CHUNK.length.toString(16)}\r\n`),
  CHUNK,
  Buffer.from('\r\n'),
])
/** A text frame with a mask of zeros: `{"type":"worker_hello"}`, which lacks all required fields. */
const BAD_HELLO = Buffer.concat([
  Buffer.from([0x81, 0x80 | 23, 0, 0, 0, 0]),
  Buffer.from('{"type":"worker_hello"}'),
])

setPriority(LOWEST_PRIORITY)

process.on('message', (job: FloodJob) => {
  void flood(job).then((result) => process.send!(result))
})

const ATTACKS: Record<FloodKind, (socket: Socket) => void> = {
  silence: () => {},
  headers: (socket) => writeEndlessly(socket, 'GET /health HTTP/1.1\r\nHost: localhost\r\nX: ', CHUNK),
  bodies: (socket) =>
    writeEndlessly(
      socket,
      'POST /s/v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n',
      BODY_CHUNK,
    ),
  hellos: (socket) => {
    socket.write(
      'GET /ws/worker HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n' +
        'Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n',
    )
    socket.on('data', (data) => {
      if (data.toString('latin1').startsWith('HTTP/1.1 101')) socket.write(BAD_HELLO)
      else socket.destroy()
    })
  },
}

function writeEndlessly(socket: Socket, head: string, chunk: Buffer): void {
  const write = () => {
    while (!socket.destroyed && socket.write(chunk));
  }
  socket.write(head)
  socket.on('drain', write)
  write()
}

async function flood({ kind, url, connections, perSecond, durationMs }: FloodJob): Promise<FloodResult> {
  const { hostname: host, port } = new URL(url)
  const open = new Set<Socket>()
  const result: FloodResult = { opened: 0, closedByProxy: 0, mostOpen: 0 }
  let isEnding = false
  const openOne = () => {
    // From several addresses, because one alone does not have enough ports.
    const localAddress = `127.0.0.${2 + (result.opened % 8)}`
    const socket = connect({ host, port: Number(port), localAddress })
    open.add(socket)
    result.opened += 1
    result.mostOpen = Math.max(result.mostOpen, open.size)
    socket.on('connect', () => ATTACKS[kind](socket))
    socket.on('error', () => {})
    socket.on('close', () => {
      open.delete(socket)
      if (!isEnding) result.closedByProxy += 1
    })
    socket.resume()
  }
  const startedAt = performance.now()
  await new Promise<void>((resolve) => {
    const timer = setInterval(() => {
      const elapsedMs = performance.now() - startedAt
      const due = Math.floor((elapsedMs / 1_000) * perSecond) - result.opened
      for (let count = 0; count < due && open.size < connections; count += 1) openOne()
      if (elapsedMs < durationMs) return
      clearInterval(timer)
      resolve()
    }, TICK_MS)
  })
  isEnding = true
  for (const socket of open) socket.destroy()
  return result
}
