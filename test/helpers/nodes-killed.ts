/** What nodes on one database lose while they are killed, stopped, drained and replaced: what agents read, and what is on record. */
import { setTimeout as delay } from 'node:timers/promises'
import { Agents } from './nodes-agents.ts'
import { type Ends, type Rig, type RigOptions, readJson, startNodes } from './nodes-rig.ts'

/** A lease is six seconds long. */
const STOPPED_MS = 18_000

export interface NodesRun extends RigOptions {
  /** Rollouts. Absent: new ones begin until `faults` are over. */
  sessions?: number
  /** Of each main agent, one after the other. */
  calls: number
  /** What happens meanwhile. */
  faults(rig: Rig, agents: Agents): Promise<void>
}

export interface NodesFigures {
  seconds: number
  sessions: number
  /** Rollouts that came to their end. */
  finished: number
  /** Answers that agents have read to their end. */
  read: number
  /** Requests that the agents' clients sent again. */
  retries: number
  /** Read, and not on record as completed. */
  lost: number
  /** Sessions in the lists of any node. */
  listed: number
  turns: number
  interrupted: number
  /** Answers that were read and are in no row. */
  untrained: number
  /** Turns that are trained in more than one row, and trained ones that nobody has read: their calls have another answer. */
  twice: number
}

/** Runs it all. What `t` tears down is everything that was started. */
export async function runNodesKilled(t: Ends, run: NodesRun): Promise<NodesFigures> {
  const rig = await startNodes(t, run)
  const startedAtMs = performance.now()
  const agents = new Agents({ ...run, urls: rig.urls })
  const faults = run.faults(rig, agents).then(() => run.sessions ?? agents.stop())
  await Promise.all([faults, agents.whenDone])
  const seconds = (performance.now() - startedAtMs) / 1_000
  const { retries, finished, readTurns } = agents
  const record = await recordOf(rig.nodes[0]!.url, readTurns)
  return { seconds, sessions: readTurns.size, retries, finished, ...record }
}

/** Kills nodes in turn, each when agents have come to the next share of their calls, and starts them again. */
export async function killInTurn({ nodes, workers }: Rig, agents: Agents, kills: number): Promise<void> {
  for (let kill = 0; kill < kills; kill += 1) {
    await agents.untilRead((kill + 1) / (kills + 1))
    const node = nodes[kill % nodes.length]!
    await node.kill()
    // For good.
    if (kill === 0) await workers[0]!.stop(0)
    await node.start()
  }
}

/** As a machine does that is suspended: its connections stay open, and it answers nobody. */
export async function stopForThreeLeases({ nodes }: Rig): Promise<void> {
  const node = nodes.at(-1)!
  node.signal('SIGSTOP')
  await delay(STOPPED_MS)
  node.signal('SIGCONT')
}

/** As a trainer reads it, of any node. */
async function recordOf(url: string, readTurns: ReadonlyMap<string, string[]>) {
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
    const trained = (trajectories as Row[]).flatMap(trainedTurns)
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

function trainedTurns({ turns }: Row): string[] {
  return turns.filter(({ trained }) => trained).map(({ turn_id: turnId }) => turnId)
}
