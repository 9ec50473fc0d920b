import { type ListenOptions, Server } from 'node:net'
import t from 'tap'
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
