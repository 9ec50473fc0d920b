/**
 * Faults of nodes, of their links and of their database while agents run: scheduled by time, and equal for equal seeds.
 */
import { setTimeout as delay } from 'node:timers/promises'
import type { DatabaseLink } from '../../helpers/database-link.ts'
import type { Node } from '../../helpers/nodes-rig.ts'
import type { PostgresServer } from '../../helpers/postgres.ts'
import { seededRandom } from './text.ts'

const EVERY_MS = 20_000
/** Three leases; a pause of a link that exceeds one lease; how long a drained node is missing. */
const STOPPED_MS = 18_000
const PAUSED_MS = 8_000
const DRAINED_MS = 10_000
const RETRY_MS = 500

interface Stage {
  nodes: readonly Node[]
  /** The links of each node to the database. */
  links: readonly DatabaseLink[]
  server: PostgresServer
}

const FAULTS = {
  'stopped for three leases': async ({ nodes }, node) => {
    nodes[node]!.signal('SIGSTOP')
    await delay(STOPPED_MS)
    nodes[node]!.signal('SIGCONT')
  },
  'link cut': async ({ links }, node) => links[node]!.cut(),
  'link paused': async ({ links }, node) => {
    links[node]!.isPaused = true
    await delay(PAUSED_MS)
    links[node]!.isPaused = false
  },
  'response to a commit dropped': async ({ links }, node) => {
    links[node]!.dropsNextCommit = true
  },
  'drained and added': async ({ nodes }, node) => {
    await nodes[node]!.drain()
    await delay(DRAINED_MS)
    await restart(nodes[node]!)
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
async function restart(node: Node): Promise<void> {
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
export async function injectNodeFaults(
  seconds: number,
  seed: number,
  stage: Stage,
): Promise<Record<Fault | 'killed', number>> {
  const draw = seededRandom(seed)
  const counts = Object.fromEntries(['killed', ...Object.keys(FAULTS)].map((name) => [name, 0])) as Record<
    Fault | 'killed',
    number
  >
  /** Nodes with a fault in progress. */
  const busy = new Set<number>()
  const running: Promise<void>[] = []
  let remaining: Fault[] = []
  const inject = (name: keyof typeof counts, fault: (stage: Stage, node: number) => Promise<void>) => {
    const idle = stage.nodes
      .keys()
      .toArray()
      .filter((index) => !busy.has(index))
    const node = idle[Math.floor(draw() * idle.length)]
    // On a slow machine all nodes may still be restarting: this fault is omitted.
    if (node === undefined) return
    counts[name] += 1
    busy.add(node)
    running.push(fault(stage, node).finally(() => busy.delete(node)))
  }
  const endMs = performance.now() + seconds * 1_000
  while (performance.now() < endMs) {
    inject('killed', async ({ nodes }, node) => {
      await nodes[node]!.kill()
      await restart(nodes[node]!)
    })
    await delay(EVERY_MS / 2)
    if (remaining.length === 0) remaining = Object.keys(FAULTS) as Fault[]
    const [name] = remaining.splice(Math.floor(draw() * remaining.length), 1)
    inject(name!, FAULTS[name!])
    await delay(EVERY_MS / 2)
  }
  await Promise.all(running)
  return counts
}
