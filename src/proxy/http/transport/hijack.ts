import type { FastifyReply } from 'fastify'

interface StreamHead {
  contentType: string
  /** Default: `no-cache`. */
  cacheControl?: string
}

/** Takes a reply over from Fastify and sends its headers with status 200. The caller writes the body. */
export function hijack(reply: FastifyReply, { contentType, cacheControl = 'no-cache' }: StreamHead): void {
  reply.hijack()
  const { raw } = reply
  const headers = {
    ...reply.getHeaders(),
    'content-type': contentType,
    'cache-control': cacheControl,
    // Reverse proxies of the nginx family buffer a response unless this header disables it.
    'x-accel-buffering': 'no',
  }
  for (const [name, value] of Object.entries(headers)) if (value !== undefined) raw.setHeader(name, value)
  raw.writeHead(200)
  raw.flushHeaders()
}
