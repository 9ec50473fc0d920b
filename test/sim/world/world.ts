/**
 * The state that all actors of one run share: time, network, disk, random numbers, and the log, which is equal for
 * equal seeds.
 */
import { createHash } from 'node:crypto'
import { createSeededRandom } from '../../../src/embedded/engine/random.ts'
import { hash } from '../actors/oracle.ts'
import { Disk } from './disk.ts'
import { Machine } from './machine.ts'
import { Network } from './network.ts'
import { VirtualTime } from './virtual-time.ts'

/** Independent random streams, so that an omitted fault changes as little as possible of the run. */
const STREAMS = ['network', 'disk', 'engine', 'workload', 'faults', 'ids', 'cuts'] as const

type Stream = (typeof STREAMS)[number]

export class World {
  readonly seed: number
  readonly time = new VirtualTime()
  readonly random: Readonly<Record<Stream, () => number>>
  readonly network: Network
  readonly disk: Disk
  /** Descriptions of violated guarantees. */
  readonly violations: string[] = []
  readonly #digest = createHash('sha256')
  readonly #echo: ((line: string) => void) | undefined

  constructor(seed: number, echo?: (line: string) => void) {
    this.seed = seed
    this.#echo = echo
    this.random = Object.fromEntries(
      STREAMS.map((name) => [name, createSeededRandom(seed * 64 + (hash(name) % 61))]),
    ) as Record<Stream, () => number>
    this.network = new Network(this.time, this.random.network)
    this.disk = new Disk(this.time, this.random.disk)
  }

  log(actor: string, message: string): void {
    const line = `${this.time.nowMs.toFixed(3)} ${actor}: ${message}`
    this.#digest.update(line).update('\n')
    this.#echo?.(line)
  }

  reportViolation(violation: string): void {
    this.log('VIOLATION', violation)
    this.violations.push(violation)
  }

  digest(): string {
    return this.#digest.copy().digest('hex').slice(0, 16)
  }
}

/** Never resolves if the calling machine dies meanwhile. */
export function sleep(ms: number): Promise<void> {
  return new Promise((resolve) => setTimeout(resolve, ms))
}

export { Machine }
