/** The proxy as `llm-proxy serve` creates it, with a supervisor that restarts it. */
import { type Platform, type RunningServer, startServer } from '../../../src/main.ts'
import { loadConfig } from '../../../src/proxy/config/load.ts'
import { SERVE, type ServeConfig } from '../../../src/proxy/config/options/serve.ts'
import { buildApp } from '../../../src/proxy/http/app.ts'
import type { HttpServer, ServerOptions } from '../../../src/proxy/http/server.ts'
import {
  createUnauthenticatedConnections,
  createWebServer,
} from '../../../src/proxy/http/transport/web-server.ts'
import { connectEngine, createLogger } from '../world/ports.ts'
import { Machine, sleep, type World } from '../world/world.ts'

export const PROXY = { host: 'proxy', port: 8080 }

const DEFAULTS = loadConfig(SERVE, {}, {})
const RESTART_MS = 1_000

export class SimProxy {
  readonly #world: World
  readonly #config: ServeConfig
  readonly #openModel: Platform['openModel']
  #machine: Machine
  #running: RunningServer | undefined
  #isStopping = false
  /** Whether the run is over, so that the supervisor must not restart it. */
  isOver = false
  /** The number of starts. */
  starts = 0

  constructor(world: World, overrides: Partial<ServeConfig>, openModel: Platform['openModel']) {
    this.#world = world
    this.#openModel = openModel
    this.#config = { ...DEFAULTS, ...PROXY, ...overrides }
    this.#machine = new Machine('proxy')
    this.#machine.kill()
  }

  get machine(): Machine {
    return this.#machine
  }

  get isUp(): boolean {
    return this.#running !== undefined && !this.#machine.isDead && !this.#isStopping
  }

  start(): void {
    if (!this.#machine.isDead || this.isOver) return
    const { skewMs } = this.#machine
    const machine = new Machine('proxy')
    machine.skewMs = skewMs
    this.#machine = machine
    this.starts += 1
    this.#isStopping = false
    machine.run(() => void this.#start(machine))
  }

  kill(): void {
    this.#world.log('proxy', 'is killed')
    this.#running = undefined
    this.#machine.kill()
  }

  /**
   * Stops the process as SIGTERM does.
   * @returns when the process has ended
   */
  async stop(graceMs: number): Promise<void> {
    const running = this.#running
    const machine = this.#machine
    if (running === undefined || machine.isDead || this.#isStopping) return
    this.#isStopping = true
    this.#world.log('proxy', 'is stopping')
    let isDone = false
    const died = new Promise<void>((resolve) => machine.onDeath(resolve))
    const stopped = machine
      .run(() => running.stop(graceMs))
      .then(
        ({ drained }) => {
          isDone = true
          this.#world.log('proxy', drained ? 'stopped' : 'stopped with requests cancelled')
          if (!machine.isDead) this.#checkReleased(machine)
        },
        (error: unknown) => {
          isDone = true
          if (this.#world.disk.isUsable) this.#world.reportViolation(`the proxy failed to stop: ${error}`)
        },
      )
    await Promise.race([stopped, died, sleep(graceMs + 120_000)])
    if (!isDone && !machine.isDead) this.#world.reportViolation('the proxy did not stop in time')
    this.#running = undefined
    machine.kill()
  }

  /** Checks that a process that ends by itself has released everything. */
  #checkReleased(machine: Machine): void {
    const timers = this.#world.time.countTimers(machine)
    if (timers > 0) this.#world.reportViolation(`the proxy has stopped and ${timers} of its timers still run`)
    const sockets = this.#world.network.links.filter(({ server, client }) =>
      [server, client].some((socket) => socket.machine === machine && !socket.destroyed),
    )
    if (sockets.length > 0)
      this.#world.reportViolation(`the proxy has stopped and ${sockets.length} of its sockets are open`)
  }

  async #start(machine: Machine): Promise<void> {
    try {
      const running = await startServer(this.#config, {
        logger: createLogger(this.#world, 'proxy'),
        platform: this.#platform(machine),
      })
      if (machine.isDead) return
      this.#running = running
      this.#world.log('proxy', `serves, start ${this.starts}`)
      void running.lost.then((error) => {
        this.#world.log('proxy', `its store has failed: ${error.message}`)
        if (this.#machine === machine) this.kill()
      })
    } catch (error) {
      this.#world.log('proxy', `failed to start: ${error}`)
      machine.kill()
    }
    machine.onDeath(() => {
      if (!this.isOver) this.#world.time.after(RESTART_MS, () => this.start(), null)
    })
    if (machine.isDead && !this.isOver) this.#world.time.after(RESTART_MS, () => this.start(), null)
  }

  #platform(machine: Machine): Platform {
    const { network, disk } = this.#world
    return {
      connect: connectEngine(network),
      spawn: disk.spawn,
      ...(this.#openModel && { openModel: this.#openModel }),
      listen: (options) => machine.run(() => this.#listen(options)),
    }
  }

  /** Listens as `src/proxy/http/server.ts` does, on a simulated socket. */
  async #listen(options: ServerOptions): Promise<HttpServer> {
    const unauthenticated = createUnauthenticatedConnections()
    const app = await buildApp(options, {
      unauthenticated,
      serverFactory: (handler) => {
        const server = createWebServer(handler, { unauthenticated })
        // Node checks these timeouts by the real clock.
        server.headersTimeout = 0
        server.requestTimeout = 0
        return server
      },
    })
    const { fastify, openResponses } = app
    await fastify.ready()
    const stop = this.#world.network.listen(PROXY, fastify.server)
    return {
      url: `http://${PROXY.host}:${PROXY.port}`,
      routes: app.routes,
      close: async () => {
        stop()
        const closed = fastify.close()
        for (let waitedMs = 0; openResponses.size > 0 && waitedMs < 5_000; waitedMs += 10) await sleep(10)
        const areComplete = openResponses.size === 0
        fastify.server.closeAllConnections()
        await closed
        await sleep(50)
        return areComplete
      },
    }
  }
}
