import { once } from 'node:events'
import { createServer } from 'node:net'

/**
 * The range of ports: below those that systems assign to sockets without one. A port from there could be assigned to
 * another process before a slow program, such as an engine, opens it.
 */
const FIRST_PORT = 20_000
const PORT_COUNT = 12_000

/** Returns a port that is currently free. */
export async function freePort(): Promise<number> {
  for (;;) {
    const port = FIRST_PORT + Math.floor(Math.random() * PORT_COUNT)
    if (await isFree(port)) return port
  }
}

async function isFree(port: number): Promise<boolean> {
  const server = createServer().listen(port, '127.0.0.1')
  try {
    await once(server, 'listening')
  } catch {
    return false
  }
  server.close()
  await once(server, 'close')
  return true
}
