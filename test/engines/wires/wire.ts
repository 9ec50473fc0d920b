/** Records the wire of a released engine, and replays it without the engine. */
import { once } from 'node:events'
import { createServer, request as httpRequest, type ServerResponse } from 'node:http'
import type { AddressInfo } from 'node:net'

/** One request of a client, and the bytes of the response. */
export interface Exchange {
  path: string
  body: Record<string, unknown> | null
  status: number
  contentType: string
  answer: string
}

/** A client's request, and what the engine's core received and sampled for it. */
export interface Wire {
  name: string
  /** Name of a request in `requests.ts`. */
  call: string
  stream: boolean
  exchanges: Exchange[]
  /** null if the engine rejected the request. */
  core: { prompt: number[]; ids: number[]; logprobs: number[] } | null
}

/** Another request of a client, and the parsed response. */
export interface RecordedQuestion {
  /** Name of a question in `requests.ts`. */
  question: string
  exchanges: Exchange[]
  answer: unknown
}

/** A release with its wires. */
export interface RecordedEngine {
  engine: string
  wires: Wire[]
  questions: RecordedQuestion[]
}

export interface WireServer {
  url: string
  close(): Promise<void>
}

/**
 * Starts a server in front of an engine that records exchanges.
 * @param onExchange receives each complete exchange
 */
export async function startRecorder(
  engineUrl: string,
  onExchange: (exchange: Exchange) => void,
): Promise<WireServer> {
  return serve((path, method, body, response) => {
    const upstream = httpRequest(engineUrl + path, {
      method,
      headers: { 'content-type': 'application/json' },
    })
    upstream.end(body)
    upstream.once('response', async (reply) => {
      const contentType = reply.headers['content-type'] ?? ''
      response.writeHead(reply.statusCode!, { 'content-type': contentType })
      const chunks: Buffer[] = []
      for await (const chunk of reply) {
        chunks.push(chunk)
        response.write(chunk)
      }
      const text = Buffer.concat(chunks).toString()
      onExchange({ path, body: parse(body), status: reply.statusCode!, contentType, answer: text })
      response.end()
    })
  })
}

/**
 * Replays recorded responses: each is the next exchange with the path and shape of the request, in arbitrary chunks.
 * @param cutAt share of a streamed response after which the connection is closed
 */
export async function startReplay(exchanges: readonly Exchange[], cutAt = 1): Promise<WireServer> {
  const left = [...exchanges]
  return serve((path, _, body, response) => {
    const request = parse(body)
    const matches = (exchange: Exchange) =>
      exchange.path === path && JSON.stringify(getShape(exchange.body)) === JSON.stringify(getShape(request))
    // A repeated request gets the second recorded response.
    const index = left.findIndex(matches)
    const exchange = index === -1 ? exchanges.findLast(matches) : left.splice(index, 1)[0]
    if (exchange === undefined) {
      const error = { message: `no recorded exchange of ${path} with ${JSON.stringify(getShape(request))}` }
      response.writeHead(599, { 'content-type': 'application/json' }).end(JSON.stringify({ error }))
      return
    }
    const bytes = Buffer.from(exchange.answer)
    response.writeHead(exchange.status, { 'content-type': exchange.contentType })
    const isCut = cutAt < 1 && exchange.contentType.includes('event-stream')
    const end = isCut ? Math.floor(bytes.length * cutAt) : bytes.length
    for (let from = 0; from < end; from += CHUNK_BYTES)
      response.write(bytes.subarray(from, Math.min(end, from + CHUNK_BYTES)))
    if (isCut) response.socket?.end()
    else response.end()
  })
}

/** A prime, so that chunks end within events. */
const CHUNK_BYTES = 997

/** Returns the request fields on which the shape of the response depends. */
function getShape(body: Record<string, unknown> | null): object {
  return { stream: body?.stream ?? false, ids: body?.return_token_ids ?? false }
}

function parse(body: string): Record<string, unknown> | null {
  return body === '' ? null : JSON.parse(body)
}

async function serve(
  respond: (path: string, method: string, body: string, response: ServerResponse) => void,
): Promise<WireServer> {
  const server = createServer(async (incoming, response) => {
    const body = (await incoming.toArray()).join('')
    respond(incoming.url!, incoming.method!, body, response)
  }).listen(0, '127.0.0.1')
  await once(server, 'listening')
  return {
    url: `http://127.0.0.1:${(server.address() as AddressInfo).port}`,
    async close() {
      server.closeAllConnections()
      server.close()
      await once(server, 'close')
    },
  }
}
