import type { FastifyReply } from 'fastify'

interface StreamHead {
  contentType: string
  /** Default: `no-cache`. */
  cacheControl?: string
}

/** Takes a reply over from Fastify and sends its head, with status 200. The body is the caller's to write, piece by piece. */
export function hijack(reply: FastifyReply, { contentType, cacheControl = 'no-cache' }: StreamHead): void {
  reply.hijack()
  const { raw } = reply
  const headers = {
    ...reply.getHeaders(),
    'content-type': contentType,
    'cache-control': cacheControl,
    // Reverse proxies of the nginx family hold a response back unless told not to.
    'x-accel-buffering': 'no',
  }
  for (const [name, value] of Object.entries(headers)) if (value !== undefined) raw.setHeader(name, value)
  raw.writeHead(200)
  raw.flushHeaders()
}
