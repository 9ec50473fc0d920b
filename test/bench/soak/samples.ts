/** The measurements of a soak, and whether they grow. */
import { statSync } from 'node:fs'
import { getRssMib } from '../parts/proc-stat.ts'
import { quantile } from '../parts/statistics.ts'
import { getLegName, type Leg, ROUNDS } from './plan.ts'
import type { SoakWorld } from './world.ts'

interface Sample {
  atMs: number
  /** Memory of the proxy; NaN while it is unavailable. */
  proxyMib: number
  /** Memory of engines and workers together. */
  othersMib: number
  /** The size of the database with its log. */
  fileMib: number
}

/** The evaluated share at the end of each leg, when its last proxy has run for a while. */
const END_SHARE = 0.25

export class Sampler implements Disposable {
  readonly samples: Sample[] = []
  readonly #timer: NodeJS.Timeout

  constructor(world: SoakWorld, db: string, everyMs: number) {
    this.#timer = setInterval(() => {
      const { proxy, others } = world.pids
      this.samples.push({
        atMs: Date.now(),
        proxyMib: proxy === undefined ? Number.NaN : getRssMib(proxy),
        othersMib: others.reduce((sum, pid) => sum + (getRssMib(pid) || 0), 0),
        fileMib: (getSize(db) + getSize(`${db}-wal`)) / 2 ** 20,
      })
    }, everyMs)
  }

  [Symbol.dispose](): void {
    clearInterval(this.#timer)
  }
}

function getSize(path: string): number {
  return statSync(path, { throwIfNoEntry: false })?.size ?? 0
}

interface Growth {
  what: string
  second: number
  last: number
  unit: string
  /** The largest permitted growth. */
  allowed: number
}

export interface Measurements {
  legs: readonly Leg[]
  samples: readonly Sample[]
  times: readonly { atMs: number; ms: number }[]
}

/** Compares the last round with the second one. Empty for a soak with fewer rounds. */
export function computeGrowth({ legs, samples, times }: Measurements): Growth[] {
  const last = legs.filter(({ round }) => round === ROUNDS)
  const second = legs.filter(({ round }) => round === 2)
  if (last.length === 0) return []
  const memory = (leg: Leg) => {
    const fromMs = leg.toMs - END_SHARE * (leg.toMs - leg.fromMs)
    const inside = samples.filter(({ atMs, proxyMib }) => atMs > fromMs && atMs < leg.toMs && proxyMib > 0)
    return quantile(
      inside.map(({ proxyMib }) => proxyMib),
      0.5,
    )
  }
  const between = <T extends { atMs: number }>(all: readonly T[], round: readonly Leg[]) =>
    all.filter(({ atMs }) => atMs > round[0]!.fromMs && atMs < round.at(-1)!.toMs)
  const latency = (round: readonly Leg[], share: number) =>
    quantile(
      between(times, round).map(({ ms }) => ms),
      share,
    )
  const size = (round: readonly Leg[]) => Math.max(...between(samples, round).map(({ fileMib }) => fileMib))
  return [
    ...last.map((leg, index) => {
      const unit = 'MiB'
      return {
        what: `RSS, ${getLegName(leg)}`,
        second: memory(second[index]!),
        last: memory(leg),
        unit,
        allowed: 0.05,
      }
    }),
    // The speed of a shared machine varies.
    { what: 'p50', second: latency(second, 0.5), last: latency(last, 0.5), unit: 'ms', allowed: 0.5 },
    { what: 'p99', second: latency(second, 0.99), last: latency(last, 0.99), unit: 'ms', allowed: 0.5 },
    { what: 'file', second: size(second), last: size(last), unit: 'MiB', allowed: 0.05 },
  ]
}

export function isFlat({ second, last, allowed }: Growth): boolean {
  return last <= second * (1 + allowed)
}
