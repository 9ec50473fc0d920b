import { connect, type ListenOptions, Server } from 'node:net'
import type { FastifyInstance } from 'fastify'
import t from 'tap'
import { withScope } from '../../../../src/proxy/http/access/guard.ts'
import { buildAppWith } from '../../../../src/proxy/http/app.ts'
import { listenWith } from '../../../../src/proxy/http/server.ts'
import { freePort } from '../../../helpers/free-port.ts'
import { silentLogger } from '../../../helpers/silent-logger.ts'

const skip = process.platform === 'linux' ? false : 'several handles share a port only on Linux'
const listenOnServer = Server.prototype.listen

/** Makes one of the attempts to share a port fail. @returns a function that undoes this */
function failAttempt(failing: number): () => void {
  let attempts = 0
  Server.prototype.listen = function (this: Server, ...args: unknown[]) {
    const { reusePort } = args[0] as ListenOptions
    if (reusePort !== true || ++attempts !== failing) return Reflect.apply(listenOnServer, this, args)
    process.nextTick(() => this.emit('error', Object.assign(new Error('too many'), { code: 'EMFILE' })))
    return this
  }
  return () => {
    Server.prototype.listen = listenOnServer
  }
}

t.test(
  'a request that does not arrive completely has 5 s, not the grace period of running ones',
  async (t) => {
    const options = { logger: silentLogger, bodyLimitBytes: 1_000, host: '127.0.0.1', port: 0 }
    const { promise: received, resolve } = Promise.withResolvers<void>()
    const server = await listenWith(options, (sockets) =>
      buildAppWith(
        options,
        async (app) => {
          await app.register(
            withScope('open', async (open: FastifyInstance) => {
              open.post('/x', { onRequest: async () => resolve() }, async () => ({}))
            }),
          )
        },
        sockets,
      ),
    )
    const { hostname, port } = new URL(server.url)
    const client = connect(Number(port), hostname).on('error', () => {})
    t.teardown(() => client.destroy())
    client.write(
      'POST /x HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: 9\r\n\r\n1',
    )
    await received
    const startedAtMs = performance.now()
    t.equal(await server.close(60_000), true)
    t.ok(performance.now() - startedAtMs < 30_000)
  },
)

t.test(
  'a server that cannot open all of its handles closes those that it has opened',
  { skip },
  async (t) => {
    const options = { logger: silentLogger, bodyLimitBytes: 1_000, host: '127.0.0.1', port: await freePort() }
    const start = () => listenWith(options, (sockets) => buildAppWith(options, async () => {}, sockets))
    const restore = failAttempt(5)
    t.teardown(restore)
    await t.rejects(start(), { code: 'EMFILE' })
    restore()
    const server = await start()
    t.equal((await fetch(`${server.url}/none`)).status, 404, 'the port can be used again')
    t.equal(await server.close(), true)
  },
)
