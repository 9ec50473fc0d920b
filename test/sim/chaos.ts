/** Injects faults, and repairs everything at the end. */
import type { Cut, EngineFault, SimEngine } from './actors/engine.ts'
import type { SimProxy } from './actors/proxy.ts'
import type { SimWorker } from './actors/worker.ts'
import { type Fault, type FaultKind, formatFault } from './faults.ts'
import type { Link, SimSocket } from './world/network.ts'
import type { Machine, World } from './world/world.ts'

interface Targets {
  world: World
  proxy: SimProxy
  workers: readonly SimWorker[]
  engines: readonly SimEngine[]
}

const ENGINE_FAULTS: Partial<Record<FaultKind, EngineFault>> = {
  engine_stalls: 'stall',
  engine_resets: 'reset',
  engine_ends_early: 'truncate',
  engine_bad_ids: 'bad_ids',
  engine_omits_ids: 'missing_ids',
  engine_new_weights: 'new_weights',
  engine_errors: 'error',
}

const CUTS: Partial<Record<FaultKind, Cut>> = {
  response_aborted: 'abort',
  response_error_event: 'error_event',
}

const HOUR_MS = 3_600_000

/** A fault in a stream occurs before this token. */
const STREAM_FAULT_TOKENS = 12

export class Chaos {
  readonly #targets: Targets
  /** Worker processes that a newer process of the same name has replaced. */
  readonly #replaced: Machine[] = []
  /** Faults that wait for a streamed response. */
  readonly #waiting: Fault[] = []
  #isHealed = false

  constructor(targets: Targets) {
    this.#targets = targets
    for (const engine of targets.engines)
      engine.onToken = (index, socket) => this.#injectStream(index, socket)
  }

  inject(fault: Fault): void {
    const { world, engines } = this.#targets
    world.log('fault', formatFault(fault))
    const engineFault = ENGINE_FAULTS[fault.kind]
    const cut = CUTS[fault.kind]
    if (cut) pickTarget(engines, fault)?.cutNext(cut, 1 + Math.floor(3 * fault.amount))
    else if (engineFault)
      pickTarget(engines, fault)?.injectFault(engineFault, 1 + Math.floor(3 * fault.amount))
    else if (fault.kind.startsWith('stream_')) this.#waiting.push(fault)
    else if (fault.kind.startsWith('link_')) this.#injectLink(fault)
    else if (fault.kind.startsWith('worker_')) this.#injectWorker(fault)
    else this.#injectMachine(fault)
  }

  heal(): void {
    const { world, workers, engines, proxy } = this.#targets
    this.#isHealed = true
    this.#waiting.length = 0
    world.disk.setFull(false)
    world.disk.setBroken(false)
    world.disk.slowMs = 3
    for (const machine of this.#replaced) machine.kill()
    for (const engine of engines) {
      engine.injectFault('stall', 0)
      engine.cutNext('abort', 0)
      engine.restart()
    }
    for (const worker of workers) if (worker.machine.isDead) worker.restart()
    proxy.start()
    // The operating system eventually detects a half-open connection.
    for (const link of world.network.links) if (link.isHalfOpen) link.reset()
  }

  #injectLink({ kind, pick, amount }: Fault): void {
    const { links } = this.#targets.world.network
    // Half of these faults hit a connection between the proxy and a worker, of which there are few.
    const workerLinks = links.filter(isWorkerLink)
    const link = pickTarget<Link>(pick < 0.5 && workerLinks.length > 0 ? workerLinks : links, {
      pick: (2 * pick) % 1,
    })
    if (link === undefined) return
    if (kind === 'link_cut')
      link.cutAfter(Math.floor(3_000 * amount ** 2), (amount * 1_000) % 1 < 0.5 ? 'reset' : 'blackholed')
    else disturb(link, kind.slice('link_'.length), amount)
  }

  /** Called at each token of a response: injects a waiting fault into the connection to the proxy. */
  #injectStream(tokenIndex: number, engineSide: SimSocket): void {
    const faultIndex = this.#waiting.findIndex(
      ({ pick }) => tokenIndex >= Math.floor(STREAM_FAULT_TOKENS * pick),
    )
    if (faultIndex < 0) return
    const { world } = this.#targets
    const { links } = world.network
    const engineLink = links.find(({ server }) => server === engineSide)
    const client = engineLink?.client.machine
    // For a worker: its connection to the proxy, over which it resumes the response after a reconnect.
    const link = links.find((link) => isWorkerLink(link) && link.client.machine === client) ?? engineLink
    if (link === undefined) return
    const [{ kind, amount }] = this.#waiting.splice(faultIndex, 1) as [Fault]
    world.log('fault', `${kind} occurs at token ${tokenIndex}, ${link.client.machine.name}`)
    disturb(link, kind.slice('stream_'.length), amount)
  }

  #injectWorker({ kind, pick, amount }: Fault): void {
    const worker = pickTarget(this.#targets.workers, { pick })
    if (worker === undefined) return
    const restart = () => {
      if (worker.machine.isDead) worker.restart()
    }
    if (kind === 'worker_killed') {
      worker.kill()
      this.#afterDelay(25_000 * amount ** 2, restart)
    } else if (kind === 'worker_repeats') {
      worker.repeat(1 + Math.floor(20 * amount))
    } else if (kind === 'worker_stopped') {
      void worker.stop(10_000 * amount).then(() => this.#afterDelay(2_000, restart))
    } else if (!worker.machine.isDead) {
      this.#replaced.push(worker.machine)
      worker.restart()
    }
  }

  #injectMachine({ kind, pick, amount }: Fault): void {
    const { world, proxy, engines, workers } = this.#targets
    const { disk } = world
    const durationMs = 200 + 15_000 * amount ** 2
    const injections: Partial<Record<FaultKind, () => void>> = {
      engine_killed: () => {
        const engine = pickTarget(engines, { pick })!
        engine.kill()
        this.#afterDelay(durationMs, () => engine.restart())
      },
      disk_full: () => {
        disk.setFull(true)
        this.#afterDelay(durationMs, () => disk.setFull(false))
      },
      disk_broken: () => {
        disk.setBroken(true)
        this.#afterDelay(durationMs, () => disk.setBroken(false))
      },
      disk_slow: () => {
        disk.slowMs = 500 * amount
        this.#afterDelay(durationMs, () => {
          disk.slowMs = 3
        })
      },
      store_killed: () => disk.killWriter(),
      proxy_killed: () => proxy.kill(),
      proxy_stopped: () => void proxy.stop(8_000 * amount),
      // Forward or backward, by at most half a day.
      clock_stepped: () => {
        const { machine } = [proxy, ...workers][Math.floor(pick * (workers.length + 1))]!
        machine.skewMs += (amount - 0.5) * 24 * HOUR_MS
      },
    }
    injections[kind]?.()
  }

  #afterDelay(ms: number, task: () => void): void {
    this.#targets.world.time.after(
      ms,
      () => {
        if (!this.#isHealed) task()
      },
      null,
    )
  }
}

function isWorkerLink({ client, server }: Link): boolean {
  return client.machine.name.startsWith('worker') && server.machine.name === 'proxy'
}

function disturb(link: Link, how: string, amount: number): void {
  if (how === 'reset') link.reset()
  else if (how === 'blackholed') link.blackhole()
  else link.delayFor(50 + 20_000 * amount ** 2)
}

function pickTarget<T>(targets: readonly T[], { pick }: Pick<Fault, 'pick'>): T | undefined {
  return targets[Math.floor(pick * targets.length)]
}
