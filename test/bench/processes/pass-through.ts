/**
 * A proxy that records nothing, built with the libraries of llm-proxy (fastify, undici). The difference between the two
 * is llm-proxy's own work.
 *
 * node pass-through.ts --engine-url URL --mode pipe|pipe+ids|parse
 *   pipe      inspects nothing: bytes in, bytes out
 *   pipe+ids  the same, but the fake engine sends everything that llm-proxy requests: token ids and logprobs
 *   parse     parses and serializes all JSON in both directions, chunk by chunk in a stream, as every gateway does that
 *             validates a request or adds a field
 */
import { type Readable, Transform } from 'node:stream'
import { parseArgs } from 'node:util'
import Fastify, { type FastifyReply } from 'fastify'
import { type Dispatcher, Pool } from 'undici'
import { REPORT_ALL } from '../parts/report-all.ts'

const { values } = parseArgs({ options: { 'engine-url': { type: 'string' }, mode: { type: 'string' } } })
const pool = new Pool(values['engine-url']!)
const path = '/v1/chat/completions'
const app = Fastify({ bodyLimit: 64 * 1024 * 1024 })

if (values.mode === 'parse') app.post(path, (request, reply) => parse(request.body, reply))
else {
  app.removeAllContentTypeParsers()
  app.addContentTypeParser('*', (_request, payload, done) => done(null, payload))
  app.post(path, (request, reply) => pipe(request.body as Readable, request.headers['content-length'], reply))
}
process.stdout.write(`pass-through on ${await app.listen({ host: '127.0.0.1', port: 0 })}\n`)

async function pipe(body: Readable, length: string | undefined, reply: FastifyReply): Promise<FastifyReply> {
  const headers = {
    'content-type': 'application/json',
    ...(values.mode === 'pipe+ids' && REPORT_ALL),
    ...(length !== undefined && { 'content-length': length }),
  }
  const response = await pool.request({ path, method: 'POST', headers, body })
  return reply.code(response.statusCode).headers(getForwardedHeaders(response)).send(response.body)
}

async function parse(body: unknown, reply: FastifyReply): Promise<FastifyReply> {
  const response = await pool.request({
    path,
    method: 'POST',
    headers: { 'content-type': 'application/json' },
    body: JSON.stringify(body),
  })
  reply.code(response.statusCode)
  if (!isStream(response)) return reply.send(await response.body.json())
  return reply.header('content-type', 'text/event-stream').send(response.body.pipe(createEventParser()))
}

function getForwardedHeaders({ headers }: Dispatcher.ResponseData): Record<string, string> {
  const { 'content-type': type, 'content-length': length } = headers as Record<string, string | undefined>
  return { ...(type && { 'content-type': type }), ...(length && { 'content-length': length }) }
}

function isStream({ headers }: Dispatcher.ResponseData): boolean {
  return String(headers['content-type']).startsWith('text/event-stream')
}

function createEventParser(): Transform {
  let rest = ''
  return new Transform({
    transform(chunk: Buffer, _encoding, done) {
      const events = (rest + chunk.toString('utf8')).split('\n\n')
      rest = events.pop()!
      done(null, events.map(reserializeEvent).join(''))
    },
  })
}

function reserializeEvent(event: string): string {
  const data = event.slice('data: '.length)
  return data.startsWith('{') ? `data: ${JSON.stringify(JSON.parse(data))}\n\n` : `${event}\n\n`
}
