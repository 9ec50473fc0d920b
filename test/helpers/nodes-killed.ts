/**
 * Compares what agents read with what is recorded while nodes of one database are killed, stopped, drained and replaced.
 */
import { setTimeout as delay } from 'node:timers/promises'
import type { Test } from 'tap'
import { Agents } from './nodes-agents.ts'
import { type Rig, type RigOptions, readJson, startNodes } from './nodes-rig.ts'

/** Three leases of six seconds each. */
const STOPPED_MS = 18_000

interface NodesRun extends RigOptions {
  /** The number of rollouts. Absent: new ones start until `faults` resolves. */
  sessions?: number
  /** Sequential requests of each main agent. */
  requests: number
  /** Injects faults during the run. */
  faults(rig: Rig, agents: Agents): Promise<void>
}

export interface NodesFigures {
  seconds: number
  sessions: number
  /** Rollouts that ended. */
  finished: number
  /** Responses that agents read completely. */
  read: number
  /** Requests that the agents' clients retried. */
  retries: number
  /** Turns that were read but not recorded as completed. */
  lost: number
  /** Sessions in the list of any node. */
  listed: number
  turns: number
  interrupted: number
  /** Turns that were read but are in no row. */
  untrained: number
  /**
   * Turns that are trained in more than one row, and trained turns that were not read: their requests have another
   * response.
   */
  twice: number
}

/** Runs the test. Everything that it starts is torn down by `t`. */
export async function runNodesKilled(t: Pick<Test, 'teardown'>, run: NodesRun): Promise<NodesFigures> {
  const rig = await startNodes(t, run)
  const startedAtMs = performance.now()
  const agents = new Agents({ ...run, urls: rig.urls })
  const faults = run.faults(rig, agents).then(() => run.sessions ?? agents.stop())
  await Promise.all([faults, agents.whenDone])
  const seconds = (performance.now() - startedAtMs) / 1_000
  const { retries, finished, readTurns } = agents
  const record = await readRecorded(rig.nodes[0]!.url, readTurns)
  return { seconds, sessions: readTurns.size, retries, finished, ...record }
}

/** Kills nodes in rotation, each when agents have reached the next share of their requests, and restarts them. */
export async function killInRotation({ nodes, workers }: Rig, agents: Agents, kills: number): Promise<void> {
  for (let kill = 0; kill < kills; kill += 1) {
    await agents.untilRead((kill + 1) / (kills + 1))
    const node = nodes[kill % nodes.length]!
    await node.kill()
    // This worker is not restarted.
    if (kill === 0) await workers[0]!.stop(0)
    await node.start()
  }
}

/** Suspends a node as a suspended machine does: its connections stay open, and it does not respond. */
export async function stopForThreeLeases({ nodes }: Rig): Promise<void> {
  const node = nodes.at(-1)!
  node.signal('SIGSTOP')
  await delay(STOPPED_MS)
  node.signal('SIGCONT')
}

/** Reads the records of any node as a trainer does. */
async function readRecorded(url: string, readTurns: ReadonlyMap<string, string[]>) {
  const sum = {
    read: 0,
    listed: await countSessions(url),
    lost: 0,
    turns: 0,
    interrupted: 0,
    untrained: 0,
    twice: 0,
  }
  for (const [id, turnIds] of readTurns) {
    const { turns } = await readJson(`${url}/sessions/${id}`)
    const { trajectories } = await readJson(`${url}/sessions/${id}/trajectories`)
    const completed = new Set(
      (turns as Turn[]).filter(({ status }) => status === 'completed').map((turn) => turn.turn_id),
    )
    const trained = (trajectories as Row[]).flatMap(listTrainedTurns)
    sum.read += turnIds.length
    sum.turns += turns.length
    sum.interrupted += (turns as Turn[]).filter(({ status }) => status === 'interrupted').length
    sum.lost += turnIds.filter((turnId) => !completed.has(turnId)).length
    sum.untrained += turnIds.filter((turnId) => !trained.includes(turnId)).length
    sum.twice += trained.length - turnIds.filter((turnId) => trained.includes(turnId)).length
  }
  return sum
}

async function countSessions(url: string): Promise<number> {
  let count = 0
  for (let cursor = ''; ; ) {
    const page = await readJson(`${url}/sessions?limit=500${cursor}`)
    count += page.sessions.length
    if (!page.next_cursor) return count
    cursor = `&cursor=${page.next_cursor}`
  }
}

interface Turn {
  turn_id: string
  status: string
}

interface Row {
  turns: { turn_id: string; trained: boolean }[]
}

function listTrainedTurns({ turns }: Row): string[] {
  return turns.filter(({ trained }) => trained).map(({ turn_id: turnId }) => turnId)
}
