/**
 * Faults of nodes, of their links and of their database while agents run: scheduled by time, and equal for equal seeds.
 */
import { setTimeout as delay } from 'node:timers/promises'
import { random } from '../../helpers/bad-network.ts'
import type { DatabaseLink } from '../../helpers/database-link.ts'
import type { Node } from '../../helpers/nodes-rig.ts'
import type { PostgresServer } from '../../helpers/postgres.ts'

const EVERY_MS = 20_000
/** Three leases; a delay of a link that exceeds one lease; how long a removed node is missing. */
const STOPPED_MS = 18_000
const HELD_MS = 8_000
const AWAY_MS = 10_000
const RETRY_MS = 500

export interface Stage {
  nodes: readonly Node[]
  /** The links of each node to the database. */
  links: readonly DatabaseLink[]
  server: PostgresServer
}

export const FAULTS = {
  'stopped for three leases': async ({ nodes }, node) => {
    nodes[node]!.signal('SIGSTOP')
    await delay(STOPPED_MS)
    nodes[node]!.signal('SIGCONT')
  },
  'link cut': async ({ links }, node) => links[node]!.cut(),
  'link held': async ({ links }, node) => {
    links[node]!.isHeld = true
    await delay(HELD_MS)
    links[node]!.isHeld = false
  },
  'answer of a commit lost': async ({ links }, node) => {
    links[node]!.losesNextCommit = true
  },
  'taken away and added': async ({ nodes }, node) => {
    await nodes[node]!.drain()
    await delay(AWAY_MS)
    await startAgain(nodes[node]!)
  },
  'database restarted': async ({ server }) => {
    await server.stop()
    await server.run()
  },
  'database crashed': async ({ server }) => {
    await server.stop('SIGKILL')
    await server.run()
  },
} as const satisfies Record<string, (stage: Stage, node: number) => Promise<void>>

type Fault = keyof typeof FAULTS

/**
 * Restarts a node as an orchestrator does: a node that starts while the database is unavailable exits with an error.
 */
async function startAgain(node: Node): Promise<void> {
  while (
    !(await node.start().then(
      () => true,
      () => false,
    ))
  )
    await delay(RETRY_MS)
}

/**
 * Kills and restarts a node every 20 s, and ten seconds later begins one of the other faults, each kind once before any
 * is repeated.
 * @returns the number of faults by kind
 */
export async function faultsFor(
  seconds: number,
  seed: number,
  stage: Stage,
): Promise<Record<Fault | 'killed', number>> {
  const draw = random(seed)
  const counts = Object.fromEntries(['killed', ...Object.keys(FAULTS)].map((name) => [name, 0])) as Record<
    Fault | 'killed',
    number
  >
  /** Nodes with a fault in progress. */
  const busy = new Set<number>()
  const going: Promise<void>[] = []
  let waiting: Fault[] = []
  const happen = (name: keyof typeof counts, fault: (stage: Stage, node: number) => Promise<void>) => {
    const free = stage.nodes
      .keys()
      .toArray()
      .filter((index) => !busy.has(index))
    const node = free[Math.floor(draw() * free.length)]
    // On a slow machine all nodes may still be restarting: this fault is omitted.
    if (node === undefined) return
    counts[name] += 1
    busy.add(node)
    going.push(fault(stage, node).finally(() => busy.delete(node)))
  }
  const endMs = performance.now() + seconds * 1_000
  while (performance.now() < endMs) {
    happen('killed', async ({ nodes }, node) => {
      await nodes[node]!.kill()
      await startAgain(nodes[node]!)
    })
    await delay(EVERY_MS / 2)
    if (waiting.length === 0) waiting = Object.keys(FAULTS) as Fault[]
    const [name] = waiting.splice(Math.floor(draw() * waiting.length), 1)
    happen(name!, FAULTS[name!])
    await delay(EVERY_MS / 2)
  }
  await Promise.all(going)
  return counts
}
