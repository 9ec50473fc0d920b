/** The HTTP server of `view`: the read routes and the inspector for a database, without a proxy. */
import type { FastifyPluginCallback } from 'fastify'
import { withScope } from './access/guard.ts'
import { type App, type AppSockets, buildAppWith, type CommonAppOptions } from './app.ts'
import { type HttpServer, type ListenOptions, listenWith } from './server.ts'
import { formatRoutes } from './trainer/formats/routes.ts'
import { type ReadRoutesOptions, readRoutes } from './trainer/sessions/read-routes.ts'

/** The fields of a viewer's `/health` that depend on its configuration. */
interface ViewHealthFields {
  version: string
  /** The path of the database file. */
  db: string
}

export interface ViewOptions extends CommonAppOptions, ReadRoutesOptions {
  facts: ViewHealthFields
}

/** Starts the server of a viewer. @throws the errors of {@link listenWith} */
export function listenToViewers(options: ViewOptions & ListenOptions): Promise<HttpServer> {
  return listenWith(options, (sockets) => buildView(options, sockets))
}

/** Builds the application of a viewer. It does not listen yet. */
export function buildView(options: ViewOptions, sockets?: AppSockets): Promise<App> {
  const { reader, tokenTexts, facts, inspector } = options
  const add: Parameters<typeof buildAppWith>[1] = async (app) => {
    await app.register(withScope('open', viewHealth), { facts })
    await app.register(withScope('view', readRoutes), { reader, tokenTexts })
    await app.register(withScope('view', formatRoutes), { reader })
    await app.register(withScope('view', noEvents))
    if (inspector) await app.register(withScope('open', inspector))
  }
  return buildAppWith(options, add, sockets)
}

const viewHealth: FastifyPluginCallback<{ facts: ViewHealthFields }> = (app, { facts }, done) => {
  app.get('/health', async () => ({ status: 'ok', mode: 'view', connected_workers: 0, ...facts }))
  done()
}

/** Responds 204 to requests for events: the proxy that writes the database sends no events to this process. */
const noEvents: FastifyPluginCallback = (app, _options, done) => {
  for (const path of ['/events', '/sessions/:sessionId/live']) {
    app.get(path, (_request, reply) => reply.code(204).send())
  }
  done()
}
