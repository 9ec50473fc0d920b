/** The proxy's routes for a rollout server that runs elsewhere, so that trainers need only the proxy's address. */
import { PassThrough, pipeline, Readable } from 'node:stream'
import type { FastifyInstance, FastifyPluginCallback, FastifyReply, FastifyRequest } from 'fastify'
import { ProxyError } from '../../base/errors.ts'
import { toShownUrl } from '../../base/shown-url.ts'
import { HttpClient } from '../http-client.ts'

export interface ForwardRolloutsOptions {
  /** The URL of the rollout server. */
  serverUrl: string
  /** The admin key of the rollout server: the first one of the proxy. */
  adminKey: string | undefined
}

interface SessionParams {
  id?: string
}

/** The response headers that are forwarded. */
const FORWARDED_HEADERS = ['content-type', 'retry-after', 'x-rollout-id']

/** Creates the routes. Register them in a scope for admins only: their users can run agents. */
export function forwardRollouts(options: ForwardRolloutsOptions): FastifyPluginCallback {
  const serverUrl = options.serverUrl.replace(/\/+$/, '')
  const authorization = options.adminKey === undefined ? {} : { authorization: `Bearer ${options.adminKey}` }
  const http = new HttpClient()

  /** Forwards a request, and streams its response, which may consist of heartbeats for hours before the result. */
  async function forward(request: FastifyRequest, reply: FastifyReply): Promise<FastifyReply> {
    const { id } = request.params as SessionParams
    // URL parsers resolve these segments to another path, even if they are percent-encoded.
    if (id === '.' || id === '..') throw new ProxyError('rollout_not_found', `There is no rollout ${id}`)
    const type = request.headers['content-type']
    const disconnected = new AbortController()
    reply.raw.once('close', () => disconnected.abort())
    const response = await http
      .open({
        method: request.method as 'GET' | 'POST' | 'DELETE',
        url: `${serverUrl}/rollouts${id === undefined ? '' : `/${encodeURIComponent(id)}`}`,
        headers: { ...authorization, ...(type !== undefined && { 'content-type': type }) },
        ...(request.body instanceof Readable && { body: request.body }),
        signal: disconnected.signal,
      })
      .catch((cause: unknown) => {
        const message = `The rollout server at ${toShownUrl(serverUrl)} does not respond`
        throw new ProxyError('rollout_server_away', message, { cause })
      })
    if (response.status === 401) {
      response.body.destroy()
      const message = `The rollout server at ${toShownUrl(serverUrl)} rejects the proxy's first admin key: give it the same --admin-key`
      throw new ProxyError('rollout_server_refused', message)
    }
    const headers = FORWARDED_HEADERS.flatMap((name) =>
      response.headers[name] === undefined ? [] : [[name, response.headers[name]]],
    )
    return reply.code(response.status).headers(Object.fromEntries(headers)).send(response.body)
  }

  return (app: FastifyInstance, _options, done) => {
    app.removeAllContentTypeParsers()
    // The body is streamed; the rollout server limits its length.
    app.addContentTypeParser('*', (_request, body, parsed) => {
      // Pipes synchronously: the proxy counts the body's bytes, so the stream is already being read.
      parsed(
        null,
        pipeline(body, new PassThrough(), () => {}),
      )
    })
    const schema = { hide: true }
    app.post('/rollouts', { schema, config: { awaitedOnClose: false } }, forward)
    app.get('/rollouts', { schema }, forward)
    app.get('/rollouts/:id', { schema }, forward)
    app.delete('/rollouts/:id', { schema }, forward)
    app.addHook('onClose', () => http.close())
    done()
  }
}
