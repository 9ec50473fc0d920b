import type { Readable } from 'node:stream'
import { constants, createGzip } from 'node:zlib'
import type { FastifyReply, FastifyRequest } from 'fastify'

/** The answers of reads repeat themselves so much that the fastest level is enough. */
const LEVEL = constants.Z_BEST_SPEED

/** Sends the body, compressed if the client says that it reads that. */
export function sendCompressed(
  { headers }: FastifyRequest,
  reply: FastifyReply,
  body: Readable,
  type = 'application/json; charset=utf-8',
): FastifyReply {
  void reply.type(type).header('vary', 'accept-encoding')
  const accepts = /(^|,)\s*gzip\s*(;q=(1|0?\.[1-9])\S*)?\s*(,|$)/.test(headers['accept-encoding'] ?? '')
  if (!accepts) return reply.send(body)
  const gzip = createGzip({ level: LEVEL })
  body.once('error', (error) => gzip.destroy(error))
  gzip.once('close', () => body.destroy())
  return reply.header('content-encoding', 'gzip').send(body.pipe(gzip))
}
