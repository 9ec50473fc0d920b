/** Accepts many connections in each turn of the event loop, for agents are new processes and begin together. */
import { createServer, type Server, type Socket } from 'node:net'

/**
 * A listening handle gives one connection in each turn (libuv, `uv__server_io`), and turns are long under load: of 200 agents
 * that begin at once the last would wait for 200 of them. With so many handles on the port it is 16 in each turn.
 */
const HANDLES = 16

/** How several handles can have one port: the kernel deals out what comes. Of Linux alone, as far as it deals evenly. */
export const SHARED_PORT = { reusePort: true } as const

/** Whether a port is to be shared among handles here. */
export const SHARES_PORTS = process.platform === 'linux'

/**
 * Keeps a port for this process. A port that is shared among handles could be shared with a second proxy just as well, and
 * each would get half of the calls. A name that is held as long as the process lives tells them apart.
 * @returns undefined where it is held already, or cannot be: then the port must not be shared
 */
export async function holdPort(port: number): Promise<Server | undefined> {
  return await started(createServer().unref(), { path: `\0llm-proxy/port/${port}` }).catch(() => undefined)
}

/** Listens where this server does with further handles, and gives it what they accept. @returns them */
export async function addHandles(server: Server): Promise<Server[]> {
  const address = server.address()
  if (address === null || typeof address === 'string') return []
  const { address: host, port } = address
  const handOver = (socket: Socket) => {
    // Errors of a request are events of the server of its socket.
    Object.assign(socket, { server })
    server.emit('connection', socket)
  }
  // As servers of HTTP have their own.
  const options = { allowHalfOpen: true, noDelay: true }
  const handles = Array.from({ length: HANDLES - 1 }, () => createServer(options, handOver))
  return await Promise.all(handles.map((handle) => started(handle, { host, port, ...SHARED_PORT })))
}

/** Resolves once they take nothing more, and what they had accepted has been closed. */
export async function closeHandles(handles: readonly Server[]): Promise<void> {
  await Promise.all(handles.map((handle) => new Promise((resolve) => handle.close(resolve))))
}

function started(server: Server, where: object): Promise<Server> {
  return new Promise((resolve, reject) => {
    server.once('error', reject)
    server.listen(where, () => {
      server.off('error', reject)
      resolve(server)
    })
  })
}
