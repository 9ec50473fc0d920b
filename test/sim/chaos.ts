/** Injects faults, and repairs everything at the end. */
import type { Cut, Mischief, SimEngine } from './actors/engine.ts'
import type { SimProxy } from './actors/proxy.ts'
import type { SimWorker } from './actors/worker.ts'
import { type Fault, type FaultKind, faultText } from './faults.ts'
import type { Link, SimSocket } from './world/network.ts'
import type { Machine, World } from './world/world.ts'

export interface Struck {
  world: World
  proxy: SimProxy
  workers: readonly SimWorker[]
  engines: readonly SimEngine[]
}

const MISCHIEF: Partial<Record<FaultKind, Mischief>> = {
  engine_stalls: 'stall',
  engine_resets: 'reset',
  engine_ends_early: 'truncate',
  engine_bad_ids: 'bad_ids',
  engine_loses_ids: 'lost_ids',
  engine_reweighted: 'new_weights',
  engine_errors: 'error',
}

const CUTS: Partial<Record<FaultKind, Cut>> = {
  response_aborted: 'abort',
  response_error_event: 'error_event',
}

const HOUR_MS = 3_600_000

/** A fault in the middle of a response occurs at a token before this one. */
const MIDWAY_TOKENS = 12

export class Chaos {
  readonly #struck: Struck
  /** Older processes of a worker that has a newer one. */
  readonly #elders: Machine[] = []
  /** Faults that wait for a response in progress. */
  readonly #midway: Fault[] = []
  #isHealed = false

  constructor(struck: Struck) {
    this.#struck = struck
    for (const engine of struck.engines) engine.onToken = (place, socket) => this.#strikeMidway(place, socket)
  }

  strike(fault: Fault): void {
    const { world, engines } = this.#struck
    world.log('fault', faultText(fault))
    const mischief = MISCHIEF[fault.kind]
    const cut = CUTS[fault.kind]
    if (cut) pickOf(engines, fault)?.cutNext(cut, 1 + Math.floor(3 * fault.amount))
    else if (mischief) pickOf(engines, fault)?.misbehave(mischief, 1 + Math.floor(3 * fault.amount))
    else if (fault.kind.startsWith('stream_')) this.#midway.push(fault)
    else if (fault.kind.startsWith('link_')) this.#strikeLink(fault)
    else if (fault.kind.startsWith('worker_')) this.#strikeWorker(fault)
    else this.#strikeMachine(fault)
  }

  heal(): void {
    const { world, workers, engines, proxy } = this.#struck
    this.#isHealed = true
    this.#midway.length = 0
    world.disk.full(false)
    world.disk.break(false)
    world.disk.slowMs = 3
    for (const machine of this.#elders) machine.kill()
    for (const engine of engines) {
      engine.misbehave('stall', 0)
      engine.cutNext('abort', 0)
      engine.restart()
    }
    for (const worker of workers) if (worker.machine.isDead) worker.restart()
    proxy.start()
    // Eventually the operating system detects a half-open connection itself.
    for (const link of world.network.links) if (link.isHalfOpen) link.reset()
  }

  #strikeLink({ kind, pick, amount }: Fault): void {
    const { links } = this.#struck.world.network
    // Half of the time it selects a connection between the proxy and a worker, of which there are few.
    const relay = links.filter(isOfRelay)
    const link = pickOf<Link>(pick < 0.5 && relay.length > 0 ? relay : links, { pick: (2 * pick) % 1 })
    if (link === undefined) return
    if (kind === 'link_cut')
      link.cutAfter(Math.floor(3_000 * amount ** 2), (amount * 1_000) % 1 < 0.5 ? 'reset' : 'lost')
    else spoil(link, kind.slice('link_'.length), amount)
  }

  /** Called when a response reaches the token `place`: injects a fault into the connection to the proxy. */
  #strikeMidway(place: number, engineSide: SimSocket): void {
    const at = this.#midway.findIndex(({ pick }) => place >= Math.floor(MIDWAY_TOKENS * pick))
    if (at < 0) return
    const { world } = this.#struck
    const { links } = world.network
    const served = links.find(({ server }) => server === engineSide)
    const asker = served?.client.machine
    // For a worker this is its connection to the proxy, over which it resumes after a reconnect.
    const link = links.find((link) => isOfRelay(link) && link.client.machine === asker) ?? served
    if (link === undefined) return
    const [{ kind, amount }] = this.#midway.splice(at, 1) as [Fault]
    world.log('fault', `${kind} strikes at token ${place}, ${link.client.machine.name}`)
    spoil(link, kind.slice('stream_'.length), amount)
  }

  #strikeWorker({ kind, pick, amount }: Fault): void {
    const worker = pickOf(this.#struck.workers, { pick })
    if (worker === undefined) return
    const startAgain = () => {
      if (worker.machine.isDead) worker.restart()
    }
    if (kind === 'worker_killed') {
      worker.kill()
      this.#later(25_000 * amount ** 2, startAgain)
    } else if (kind === 'worker_repeats') {
      worker.repeat(1 + Math.floor(20 * amount))
    } else if (kind === 'worker_stopped') {
      void worker.stop(10_000 * amount).then(() => this.#later(2_000, startAgain))
    } else if (!worker.machine.isDead) {
      this.#elders.push(worker.machine)
      worker.restart()
    }
  }

  #strikeMachine({ kind, pick, amount }: Fault): void {
    const { world, proxy, engines, workers } = this.#struck
    const { disk } = world
    const forMs = 200 + 15_000 * amount ** 2
    const strikes: Partial<Record<FaultKind, () => void>> = {
      engine_killed: () => {
        const engine = pickOf(engines, { pick })!
        engine.kill()
        this.#later(forMs, () => engine.restart())
      },
      disk_full: () => {
        disk.full(true)
        this.#later(forMs, () => disk.full(false))
      },
      disk_broken: () => {
        disk.break(true)
        this.#later(forMs, () => disk.break(false))
      },
      disk_slow: () => {
        disk.slowMs = 500 * amount
        this.#later(forMs, () => {
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
    strikes[kind]?.()
  }

  #later(ms: number, task: () => void): void {
    this.#struck.world.time.after(
      ms,
      () => {
        if (!this.#isHealed) task()
      },
      null,
    )
  }
}

function isOfRelay({ client, server }: Link): boolean {
  return client.machine.name.startsWith('worker') && server.machine.name === 'proxy'
}

function spoil(link: Link, how: string, amount: number): void {
  if (how === 'reset') link.reset()
  else if (how === 'lost') link.lose()
  else link.hold(50 + 20_000 * amount ** 2)
}

function pickOf<T>(all: readonly T[], { pick }: Pick<Fault, 'pick'>): T | undefined {
  return all[Math.floor(pick * all.length)]
}
