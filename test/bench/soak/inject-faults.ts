/** The faults of a soak, in sequence: changes of legs, kills, and frequent weight updates. */
import { setTimeout as sleep } from 'node:timers/promises'
import type { Leg } from './plan.ts'
import type { SoakWorld } from './world.ts'

/** The share of a leg before the proxy is killed, constant so that memory of the last proxies can be compared. */
const PROXY_KILL_SHARE = 1 / 3
const UPDATES_PER_LEG = 10

export async function injectFaults(
  world: SoakWorld,
  legs: readonly Leg[],
  random: () => number,
): Promise<void> {
  for (const leg of legs) {
    await sleep(Math.max(0, leg.fromMs - Date.now()))
    // The first leg begins before the agents start.
    if (leg !== legs[0]) await reportFailure(() => world.startLeg(leg))
    for (const { atMs, inject } of scheduleFaults(world, leg, random)) {
      // A fault that is late because earlier ones took long is omitted at the end of its leg.
      if (Date.now() > leg.toMs) break
      await sleep(Math.max(0, atMs - Date.now()))
      await reportFailure(inject)
    }
  }

  /** Records a failed operation as a fault, and continues. */
  async function reportFailure(work: () => Promise<void>): Promise<void> {
    try {
      await work()
    } catch (error) {
      world.faults.push(`${error instanceof Error ? error.stack : error}`)
    }
  }
}

function scheduleFaults(world: SoakWorld, { fromMs, toMs }: Leg, random: () => number) {
  const at = (share: number) => fromMs + share * (toMs - fromMs)
  const between = () => at(0.15 + 0.75 * random())
  const number = Math.floor(random() * 100)
  const faults = [
    { atMs: at(PROXY_KILL_SHARE), inject: () => world.killProxy() },
    { atMs: between(), inject: () => world.killWorker(number) },
    { atMs: between(), inject: () => world.killEngine(number) },
    ...Array.from({ length: UPDATES_PER_LEG }, (_, update) => ({
      atMs: at((update + 0.5) / UPDATES_PER_LEG),
      inject: () => world.updateWeights(),
    })),
  ]
  return faults.sort((a, b) => a.atMs - b.atMs)
}
