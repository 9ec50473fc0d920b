import { once } from 'node:events'
import { createServer, type IncomingHttpHeaders, type Server, type ServerResponse } from 'node:http'
import type { AddressInfo } from 'node:net'

export interface IncomingRequest {
  method: string
  path: string
  headers: IncomingHttpHeaders
  /** The JSON body; undefined if it was empty. */
  // biome-ignore lint/suspicious/noExplicitAny: tests inspect bodies of any shape
  body: any
  /** The body as received. */
  text: string
  /** Resolves when the client has closed the connection before the response was complete. */
  cancelled: Promise<void>
}

export type Script = (request: IncomingRequest, response: ServerResponse) => void | Promise<void>

export interface ScriptedServer {
  url: string
  port: number
  /** Requests in order of arrival. */
  requests: IncomingRequest[]
  server: Server
  close(): Promise<void>
}

/** Starts an HTTP server on a free loopback port that responds as `script` defines, and records its requests. */
export async function startScriptedServer(script: Script, port = 0): Promise<ScriptedServer> {
  const requests: IncomingRequest[] = []
  const server = createServer(async (incoming, response) => {
    const text = (await incoming.toArray()).join('')
    const request: IncomingRequest = {
      method: incoming.method ?? '',
      path: incoming.url ?? '',
      headers: incoming.headers,
      body: text === '' ? undefined : JSON.parse(text),
      text,
      cancelled: new Promise((resolve) => {
        response.once('close', () => {
          if (!response.writableFinished) resolve()
        })
      }),
    }
    requests.push(request)
    await script(request, response)
  })
  server.listen(port, '127.0.0.1')
  await once(server, 'listening')
  const address = server.address() as AddressInfo
  return {
    url: `http://127.0.0.1:${address.port}`,
    port: address.port,
    requests,
    server,
    async close() {
      server.closeAllConnections()
      server.close()
      await once(server, 'close')
    },
  }
}

export function sendJson(response: ServerResponse, body: unknown, status = 200): void {
  response.writeHead(status, { 'content-type': 'application/json' }).end(JSON.stringify(body))
}

/**
 * Opens a stream of server-sent events.
 * @returns a function that writes one event: an object as JSON, a text unchanged
 */
export function openEventStream(response: ServerResponse): (data: unknown) => boolean {
  response.writeHead(200, { 'content-type': 'text/event-stream; charset=utf-8' })
  return (data) => response.write(`data: ${typeof data === 'string' ? data : JSON.stringify(data)}\n\n`)
}
