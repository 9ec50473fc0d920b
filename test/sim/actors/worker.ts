/** An inference worker as `llm-proxy worker` creates it. */
import type { LogEventName } from '../../../src/base/log-events.ts'
import type { Logger } from '../../../src/base/logger.ts'
import { type RunningWorker, startWorker } from '../../../src/main.ts'
import { loadConfig } from '../../../src/proxy/config/load.ts'
import { WORKER, type WorkerConfig } from '../../../src/proxy/config/options/worker.ts'
import type { Link, SimSocket } from '../world/network.ts'
import { connectEngine, createLogger, dialProxy } from '../world/ports.ts'
import { Machine, sleep, type World } from '../world/world.ts'
import { PROXY } from './proxy.ts'

const DEFAULTS = loadConfig(WORKER, { proxyUrls: [`http://${PROXY.host}:${PROXY.port}`] }, {})

const REPLACE_CHECK_DELAY_MS = 1_000

export class SimWorker {
  readonly name: string
  readonly #world: World
  readonly #config: WorkerConfig
  #machine: Machine
  #running: RunningWorker
  /** The connection of the newest accepted process. */
  #newest: Link | undefined
  /** The number of response frames that it still sends twice. */
  #repeats = 0

  constructor(world: World, name: string, overrides: Partial<WorkerConfig>) {
    this.#world = world
    this.name = name
    this.#config = { ...DEFAULTS, workerId: name, ...overrides }
    this.#machine = new Machine(name)
    this.#running = this.#start()
  }

  get machine(): Machine {
    return this.#machine
  }

  /** Sends the next response frames twice. */
  repeat(frames: number): void {
    this.#repeats = frames
  }

  kill(): void {
    this.#world.log(this.name, 'is killed')
    this.#machine.kill()
  }

  /** Starts a new process with the same name; the old one may still run. */
  restart(): void {
    this.#world.log(this.name, 'is restarted')
    this.#machine = new Machine(this.name)
    this.#running = this.#start()
  }

  async stop(graceMs: number): Promise<void> {
    const machine = this.#machine
    if (machine.isDead) return
    this.#world.log(this.name, 'is stopping')
    let isDone = false
    const died = new Promise<void>((resolve) => machine.onDeath(resolve))
    const stopped = machine
      .run(() => this.#running.stop(graceMs))
      .then(({ drained }) => {
        isDone = true
        this.#world.log(this.name, drained ? 'stopped' : 'stopped with requests dropped')
        const timers = machine.isDead ? 0 : this.#world.time.countTimers(machine)
        if (timers > 0)
          this.#world.reportViolation(`worker ${this.name} has stopped and ${timers} of its timers still run`)
      })
    await Promise.race([stopped, died, sleep(graceMs + 60_000)])
    if (!isDone && !machine.isDead) this.#world.reportViolation(`worker ${this.name} did not stop in time`)
    machine.kill()
  }

  /** Creates a logger that checks that the proxy never replaces a newer process of this name with an older one. */
  #createWatchedLogger(machine: Machine): Logger {
    const logger = createLogger(this.#world, this.name)
    const onConnected = () => {
      const link = this.#world.network.links.find(
        ({ client, server }) =>
          client.machine === machine && server.machine.name === 'proxy' && isAlive(client),
      )
      if (machine === this.#machine) this.#newest = link
      const newest = this.#newest
      if (machine === this.#machine || !link || !newest || !isAlive(newest.client)) return
      // A restarted proxy knows no workers: it accepts the first process, until a newer one connects.
      if (link.server.machine !== newest.server.machine) return
      const check = () => {
        if (isAlive(link.client) && !isAlive(newest.client) && this.#newest === newest)
          this.#world.reportViolation(`an older process of ${this.name} has replaced a newer one`)
      }
      this.#world.time.after(REPLACE_CHECK_DELAY_MS, check, null)
    }
    const info: Logger['info'] = (fields, message) => {
      logger.info(fields, message)
      if ((fields as { event?: LogEventName }).event === 'proxy_connected') onConnected()
    }
    return { ...logger, info }
  }

  #start(): RunningWorker {
    const { network } = this.#world
    const logger = this.#createWatchedLogger(this.#machine)
    const repeats = () => {
      if (this.#repeats === 0) return false
      this.#repeats -= 1
      return true
    }
    return this.#machine.run(() =>
      startWorker(this.#config, {
        logger,
        platform: { connect: connectEngine(network), dial: dialProxy(network, repeats) },
      }),
    )
  }
}

function isAlive({ destroyed, machine }: SimSocket): boolean {
  return !destroyed && !machine.isDead
}
