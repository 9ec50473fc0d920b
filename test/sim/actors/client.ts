/** Requests to the proxy, from a client on a separate machine. */
import { request as httpRequest, type IncomingHttpHeaders } from 'node:http'
import type { Socket } from 'node:net'
import { Machine, type World } from '../world/world.ts'
import { PROXY } from './proxy.ts'

export interface ClientRequest {
  method: 'GET' | 'POST' | 'DELETE'
  path: string
  body?: unknown
  headers?: Record<string, string>
  /** The client's timeout. */
  timeoutMs?: number
  /** The client disconnects after it has read this many bytes of the response. */
  disconnectAfterBytes?: number
}

export interface ClientResponse {
  /** The HTTP status; 0 if there was no response. */
  status: number
  headers: IncomingHttpHeaders
  text: string
  /** Whether the response was read completely. */
  isComplete: boolean
  error?: string
}

const TIMEOUT_MS = 120_000

let lastClient = 0

/** Sends a request. Never rejects. */
export function sendRequest(world: World, request: ClientRequest): Promise<ClientResponse> {
  lastClient += 1
  const machine = new Machine(`client-${lastClient}`)
  return machine.run(() => send(world, request))
}

/** Resets the counter, so that the clients of each run have the same names. */
export function resetClients(): void {
  lastClient = 0
}

function send(
  world: World,
  { method, path, body, headers, timeoutMs = TIMEOUT_MS, disconnectAfterBytes }: ClientRequest,
) {
  return new Promise<ClientResponse>((resolve) => {
    const reply: ClientResponse = { status: 0, headers: {}, text: '', isComplete: false }
    const json = body === undefined ? undefined : JSON.stringify(body)
    const socket = world.network.connect(PROXY)
    const request = httpRequest({
      method,
      path,
      host: PROXY.host,
      createConnection: () => socket as unknown as Socket,
      headers: {
        connection: 'close',
        ...(json !== undefined && {
          'content-type': 'application/json',
          'content-length': Buffer.byteLength(json),
        }),
        ...headers,
      },
    })
    const timer = setTimeout(() => finish('timed out'), timeoutMs)
    const finish = (error?: string) => {
      clearTimeout(timer)
      if (error !== undefined) reply.error ??= error
      socket.destroy()
      resolve(reply)
    }
    request.on('error', (error) => finish(error.message))
    request.on('response', (response) => {
      reply.status = response.statusCode ?? 0
      reply.headers = response.headers
      response.setEncoding('utf8')
      response.on('data', (text: string) => {
        reply.text += text
        if (disconnectAfterBytes !== undefined && reply.text.length >= disconnectAfterBytes)
          finish('disconnected')
      })
      response.on('error', (error) => finish(error.message))
      response.on('end', () => {
        reply.isComplete = response.complete
        finish(response.complete ? undefined : 'incomplete')
      })
    })
    request.end(json)
  })
}
