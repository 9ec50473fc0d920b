/**
 * An engine whose connection is lost in the middle of one response: a server between the proxy and the engine breaks
 * it.
 */
import { once } from 'node:events'
import { createServer, type IncomingMessage, type ServerResponse } from 'node:http'
import type { AddressInfo } from 'node:net'
import { buffer } from 'node:stream/consumers'
import type { Test } from 'tap'

/**
 * Forwards requests to the engine, and only half of one response.
 * @param lostAnswer index of the streamed response that is lost, from 0
 * @returns the URL for the proxy
 */
export async function startLosingEngine(t: Test, engineUrl: string, lostAnswer: number): Promise<string> {
  let streams = 0
  const forward = async (request: IncomingMessage, response: ServerResponse) => {
    const { method = 'GET', headers } = request
    const body = method === 'GET' ? null : await buffer(request)
    const isStream = body?.includes('"stream":true') === true
    const isLost = isStream && streams++ === lostAnswer
    const type = headers['content-type']
    const answer = await fetch(engineUrl + request.url, {
      method,
      body,
      ...(type !== undefined && { headers: { 'content-type': type } }),
    })
    const whole = Buffer.from(await answer.arrayBuffer())
    response.writeHead(answer.status, { 'content-type': answer.headers.get('content-type') ?? 'text/plain' })
    if (!isLost) return response.end(whole)
    response.write(whole.subarray(0, whole.length / 2), () => response.destroy())
    return response
  }
  const server = createServer((request, response) => void forward(request, response))
  server.listen(0, '127.0.0.1')
  await once(server, 'listening')
  t.teardown(() => server.close())
  return `http://127.0.0.1:${(server.address() as AddressInfo).port}`
}
