/** Kills a process after it acknowledged requests, restarts it, and counts which of them are recorded. */
import { mkdirSync } from 'node:fs'
import { join } from 'node:path'
import { Pool } from 'undici'
import { Children } from '../parts/children.ts'
import { Conversation } from '../parts/conversation.ts'
import { createHeaders } from '../parts/headers.ts'
import type { Peer, Started } from './catalog.ts'
import { CALL_PATH } from './loads.ts'

export interface KillPlan {
  stream: boolean
  /** The number of acknowledged requests at which it is killed. */
  calls: number
  agents: number
}

export interface KillResult {
  /** Responses that their agents read completely. */
  acknowledged: number
  /** Acknowledged requests that are recorded. */
  onRecord: number
}

/** An agent has one session, and sends requests until the process dies. */
interface Agent {
  session: string
  acknowledged: number
}

const SHAPE = { bodyBytes: 140_000, growthBytes: 1_500, maxTokens: 100 }

export async function kill(
  peer: Peer,
  engineUrl: string,
  parent: string,
  plan: KillPlan,
): Promise<KillResult> {
  const folder = join(parent, `${peer.name}-killed-${plan.stream}`)
  mkdirSync(folder, { recursive: true })
  const agents = Array.from({ length: plan.agents }, (_, index) => ({
    session: `killed-${index}`,
    acknowledged: 0,
  }))
  await using children = new Children()
  const place = { children, engineUrl, folder }
  await callUntilKilled(children, await peer.start(place), agents, plan)
  const { child } = await peer.start(place)
  const origin = new URL(child.url).origin
  let onRecord = 0
  for (const { session, acknowledged } of agents) {
    // One more request may be recorded than was acknowledged.
    onRecord += Math.min(acknowledged, await peer.record!.calls(origin, session))
  }
  await children.kill(child)
  return { acknowledged: agents.reduce((sum, agent) => sum + agent.acknowledged, 0), onRecord }
}

async function callUntilKilled(
  children: Children,
  started: Started,
  agents: Agent[],
  plan: KillPlan,
): Promise<void> {
  const pool = new Pool(new URL(started.baseUrl).origin, { connections: plan.agents, pipelining: 1 })
  let left = plan.calls
  let gone: Promise<void> | undefined
  const run = async (agent: Agent) => {
    const job = { ...SHAPE, stream: plan.stream } as ConstructorParameters<typeof Conversation>[0]
    const conversation = new Conversation(job)
    while (left > 0) {
      const body = conversation.ask(`${agent.session} ${agent.acknowledged}`)
      const answered = await call(pool, started, agent.session, body).catch((error) => {
        if (left > 0) throw error
      })
      if (answered === undefined || left <= 0) return
      agent.acknowledged += 1
      left -= 1
      if (left === 0) gone = children.kill(started.child)
      if (!plan.stream) conversation.hear(answered)
    }
  }
  await Promise.all(agents.map(run))
  await gone
  await pool.destroy()
}

async function call(
  pool: Pool,
  { baseUrl, headers = {} }: Started,
  session: string,
  body: Buffer,
): Promise<Buffer> {
  const path = new URL(baseUrl + CALL_PATH).pathname.replace('%7Bsession%7D', session)
  const { statusCode, body: response } = await pool.request({
    ...{ path, method: 'POST', headers: createHeaders({ headers }, session), body },
  })
  const bytes = Buffer.from(await response.arrayBuffer())
  if (statusCode !== 200) throw new Error(`status ${statusCode}: ${bytes.toString('utf8', 0, 300)}`)
  return bytes
}
