/** The processes of a soak: engines, workers, and the proxy in the mode of its leg. */
import { once } from 'node:events'
import { join } from 'node:path'
import { Forwarder } from '../../helpers/forwarder.ts'
import { freePort } from '../../helpers/free-port.ts'
import { LAUNCHER } from '../../helpers/llm-proxy.ts'
import { until } from '../../helpers/until.ts'
import type { Child, Children } from '../parts/children.ts'
import type { Leg } from './plan.ts'

export type Durability = 'power' | 'process'

interface WorldOptions {
  db: string
  ttlS: number
  durability: Durability
  workers: number
}

/** An interval in which the proxy is unavailable: a broken request is not a fault. */
interface Outage {
  fromMs: number
  /** Absent while the outage lasts. */
  toMs?: number
}

const WATCH_LOOP = join(import.meta.dirname, 'watch-loop.ts')
const ENGINES = 2
const TOKENS_PER_SECOND = 50
const DRAIN_S = 20
/** How long a worker waits for its proxy to return; stopping the processes takes longer. */
const WORKER_GRACE = '10s'
/** A shared machine may be slow to start a process. */
const READY_MS = 300_000

export class SoakWorld {
  readonly #children: Children
  readonly #options: WorldOptions
  readonly #ports: { proxy: number; engines: number[] }
  readonly #engines: Child[] = []
  readonly #workers: Child[] = []
  /** Links between workers and the proxy. */
  readonly links: Forwarder[] = []
  readonly #outages: Outage[] = []
  readonly #versions: { version: string; fromMs: number }[] = [{ version: '1', fromMs: 0 }]
  /** Stalls of the proxy's event loop, in milliseconds of CPU time. */
  readonly stallsMs: number[] = []
  readonly faults: string[] = []
  readonly kills = { proxy: 0, worker: 0, engine: 0, updates: 0 }
  #leg: Leg | undefined
  #proxy: Child | undefined

  private constructor(
    children: Children,
    options: WorldOptions,
    ports: { proxy: number; engines: number[] },
  ) {
    this.#children = children
    this.#options = options
    this.#ports = ports
  }

  static async start(
    children: Children,
    options: WorldOptions,
    links: AsyncDisposableStack,
  ): Promise<SoakWorld> {
    const ports = { proxy: await freePort(), engines: [] as number[] }
    for (let number = 0; number < ENGINES; number += 1) ports.engines.push(await freePort())
    const world = new SoakWorld(children, options, ports)
    for (let number = 0; number < ENGINES; number += 1) await world.#startEngine(number)
    const teardown = (close: () => unknown) => links.defer(() => void close())
    for (let number = 0; number < options.workers; number += 1)
      world.links.push(await Forwarder.to({ teardown }, ports.proxy))
    return world
  }

  get url(): string {
    return `http://127.0.0.1:${this.#ports.proxy}`
  }

  /** The processes that currently run. */
  get pids(): { proxy: number | undefined; others: number[] } {
    return { proxy: this.#proxy?.pid, others: [...this.#engines, ...this.#workers].map(({ pid }) => pid) }
  }

  /** Returns whether the proxy was unavailable at any time in the interval. */
  wasUnavailable(fromMs: number, toMs: number): boolean {
    return this.#outages.some((outage) => outage.fromMs <= toMs && (outage.toMs ?? toMs) >= fromMs)
  }

  /** Returns the weight versions that engines had at any time in the interval. */
  getWeightVersions(fromMs: number, toMs: number): string[] {
    return this.#versions
      .filter(
        ({ fromMs: sinceMs }, index) =>
          sinceMs <= toMs && (this.#versions[index + 1]?.fromMs ?? toMs) >= fromMs,
      )
      .map(({ version }) => version)
  }

  /** Permits the proxy to exit. */
  release(): void {
    this.#proxy = undefined
  }

  /** Stops the proxy gracefully, and starts it in the leg's mode. */
  async startLeg(leg: Leg): Promise<void> {
    await this.#runOutage(async () => {
      const before = this.#proxy
      this.#proxy = undefined
      for (const child of [before, ...this.#workers.splice(0)]) if (child) await this.#stop(child)
      this.#leg = leg
      await this.#startProxy()
      if (leg.mode === 'relay')
        for (let number = 0; number < this.#options.workers; number += 1) await this.#startWorker(number)
    })
  }

  async killProxy(): Promise<void> {
    this.kills.proxy += 1
    await this.#runOutage(async () => {
      const proxy = this.#proxy
      this.#proxy = undefined
      if (proxy) await kill(proxy)
      await this.#startProxy()
    })
  }

  /** Kills a worker. In local mode there is none. */
  async killWorker(number: number): Promise<void> {
    const index = number % this.#options.workers
    const worker = this.#workers[index]
    if (worker === undefined) return
    this.kills.worker += 1
    await kill(worker)
    await this.#startWorker(index)
  }

  async killEngine(number: number): Promise<void> {
    const index = number % ENGINES
    this.kills.engine += 1
    await kill(this.#engines[index]!)
    await this.#startEngine(index)
  }

  /** Updates weights as a trainer does: nothing is sampled meanwhile. */
  async updateWeights(): Promise<void> {
    const version = String(this.#versions.length + 1)
    await this.#post(`${this.url}/admin/pause?drain_timeout_s=${DRAIN_S}`)
    this.#versions.push({ version, fromMs: Date.now() })
    for (const port of this.#ports.engines)
      await this.#post(`http://127.0.0.1:${port}/update_weight_version`, { new_version: version })
    await this.#post(`${this.url}/admin/resume`)
    this.kills.updates += 1
  }

  /** Stops a process. If it has to be killed, that is a fault; the soak continues. */
  async #stop(child: Child): Promise<void> {
    await this.#children.stop(child).catch((error: Error) => this.faults.push(error.message))
  }

  async #post(url: string, body: object = {}): Promise<void> {
    const response = await fetch(url, {
      method: 'POST',
      headers: { 'content-type': 'application/json' },
      body: JSON.stringify(body),
    })
    const text = await response.text()
    if (!response.ok) this.faults.push(`POST ${url}: ${response.status} ${text}`)
  }

  /** Runs `work`, during which the proxy is unavailable. */
  async #runOutage(work: () => Promise<void>): Promise<void> {
    this.#outages.push({ fromMs: Date.now() })
    await work()
    // An earlier attempt may have failed to start a proxy.
    for (const outage of this.#outages) outage.toMs ??= Date.now()
  }

  async #startProxy(): Promise<void> {
    const { mode, prompts } = this.#leg!
    const { db, ttlS, durability } = this.#options
    const args = ['--mode', mode, '--port', String(this.#ports.proxy), '--db', db, '--log-level', 'error']
    if (mode === 'local') args.push(...this.#engineArgs())
    if (prompts === 'token') args.push('--tokenizer', 'embedded')
    const storeOptions = ['--session-ttl', `${ttlS}s`, '--durability', durability]
    const proxy = await this.#children.start({
      name: 'llm-proxy',
      args: ['--import', WATCH_LOOP, LAUNCHER, 'serve', ...args, ...storeOptions],
      ipc: true,
      readyMs: READY_MS,
    })
    this.#proxy = proxy
    proxy.process.on('message', ({ stallMs }: { stallMs: number }) => this.stallsMs.push(stallMs))
    proxy.process.once('exit', (code, signal) => {
      if (this.#proxy === proxy) this.faults.push(`the proxy exited unexpectedly: ${code ?? signal}`)
    })
    proxy.process.send('watch')
  }

  async #startEngine(number: number): Promise<void> {
    const { version } = this.#versions.at(-1)!
    const args = ['--port', String(this.#ports.engines[number]), '--weight-version', version]
    const pace = ['--tokens-per-second', String(TOKENS_PER_SECOND), '--log-level', 'error']
    const program = [LAUNCHER, 'engine', '--model', 'soak', ...args, ...pace]
    this.#engines[number] = await this.#children.start({ name: 'engine', args: program, readyMs: READY_MS })
  }

  async #startWorker(number: number): Promise<void> {
    const id = `soak-${number}`
    const args = ['--proxy-url', `http://127.0.0.1:${this.links[number]!.port}`, '--worker-id', id]
    const options = ['--max-concurrency', '1024', '--shutdown-grace', WORKER_GRACE, '--log-level', 'error']
    const program = [LAUNCHER, 'worker', ...args, ...this.#engineArgs(), ...options]
    this.#workers[number] = await this.#children.start({ name: 'worker', args: program, silent: true })
    const workers = async () =>
      (await (await fetch(`${this.url}/admin/workers`)).json()) as { worker_id: string }[]
    await until(async () => (await workers()).some(({ worker_id: other }) => other === id))
  }

  #engineArgs(): string[] {
    const urls = this.#ports.engines.flatMap((port) => ['--engine-url', `http://127.0.0.1:${port}`])
    return [...urls, '--engine-kind', 'vllm']
  }
}

async function kill({ process: child }: Child): Promise<void> {
  if (child.exitCode !== null || child.signalCode !== null) return
  const exited = once(child, 'exit')
  child.kill('SIGKILL')
  await exited
}
