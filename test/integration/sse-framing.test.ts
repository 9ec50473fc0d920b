/** The bytes of a stream on the wire, for each kind of connection that agents open. */
import { once } from 'node:events'
import { type AddressInfo, connect } from 'node:net'
import { text } from 'node:stream/consumers'
import Fastify from 'fastify'
import t, { type Test } from 'tap'
import { SseReply } from '../../src/proxy/http/agent/sse-reply.ts'

const EVENTS = ['data: a\n\n', 'data: \u{1F30A}é\n\n', ': keep-alive\n\n']

/** Returns a server's response to these bytes, until it closes the connection. */
async function fetchResponse(t: Test, request: string): Promise<string> {
  const app = Fastify({ forceCloseConnections: true })
  t.teardown(() => app.close())
  app.get('/', async (_request, reply) => {
    const sse = new SseReply(reply)
    await sse.send(EVENTS[0]!)
    await sse.send('')
    await sse.send(EVENTS[1]!)
    sse.keepAlive(() => EVENTS[2]!)
    sse.end()
  })
  await app.listen({ host: '127.0.0.1', port: 0 })
  const agent = connect((app.server.address() as AddressInfo).port, '127.0.0.1')
  await once(agent, 'connect')
  agent.write(request)
  return await text(agent)
}

const CHUNKS = EVENTS.map((chunk) => `${Buffer.byteLength(chunk).toString(16)}\r\n${chunk}\r\n`).join('')

t.test('each text is a chunk of HTTP/1.1, and its length is in bytes', async (t) => {
  const response = await fetchResponse(t, 'GET / HTTP/1.1\r\nhost: p\r\nconnection: close\r\n\r\n')
  const [head, ...body] = response.split('\r\n\r\n')
  t.match(head, /^HTTP\/1\.1 200 OK\r\n/)
  t.match(head, /\r\ntransfer-encoding: chunked(\r\n|$)/i)
  t.equal(body.join('\r\n\r\n'), `${CHUNKS}0\r\n\r\n`)
})

t.test('HTTP/1.0 has no chunks: the body ends with the connection', async (t) => {
  const response = await fetchResponse(t, 'GET / HTTP/1.0\r\n\r\n')
  t.equal(response.slice(response.indexOf('\r\n\r\n') + 4), EVENTS.join(''))
})

t.test('responses to pipelined requests are complete and in order', async (t) => {
  const get = 'GET / HTTP/1.1\r\nhost: p\r\n'
  const response = await fetchResponse(t, `${get}\r\n${get}connection: close\r\n\r\n`)
  const bodies = response.split(/HTTP\/1\.1 200 OK\r\n/).slice(1)
  t.same(
    bodies.map((body) => body.slice(body.indexOf('\r\n\r\n') + 4)),
    [`${CHUNKS}0\r\n\r\n`, `${CHUNKS}0\r\n\r\n`],
  )
})
