/** Kills a process after it acknowledged requests, restarts it, and counts which of them are recorded. */
import { mkdirSync } from 'node:fs'
import { join } from 'node:path'
import { Pool } from 'undici'
import { Children } from '../parts/children.ts'
import { Conversation } from '../parts/conversation.ts'
import { createHeaders } from '../parts/headers.ts'
import { CHAT_PATH } from '../parts/targets.ts'
import type { Peer, PeerInstance } from './catalog.ts'

interface KillPlan {
  stream: boolean
  /** The number of acknowledged requests after which the process is killed. */
  requests: number
  agents: number
}

interface KillResult {
  /** Responses that their agents read completely. */
  acknowledged: number
  /** Acknowledged requests that are recorded. */
  recorded: number
}

/** An agent with one session, which sends requests until the process dies. */
interface Agent {
  session: string
  acknowledged: number
}

const SHAPE = { bodyBytes: 140_000, growthBytes: 1_500, maxTokens: 100 }

export async function measureKill(
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
  const context = { children, engineUrl, folder }
  await sendUntilKilled(children, await peer.start(context), agents, plan)
  const { child } = await peer.start(context)
  const origin = new URL(child.url).origin
  let recorded = 0
  for (const { session, acknowledged } of agents) {
    // One more request may be recorded than was acknowledged.
    recorded += Math.min(acknowledged, await peer.record!.countRequests(origin, session))
  }
  await children.kill(child)
  return { acknowledged: agents.reduce((sum, agent) => sum + agent.acknowledged, 0), recorded }
}

async function sendUntilKilled(
  children: Children,
  instance: PeerInstance,
  agents: Agent[],
  plan: KillPlan,
): Promise<void> {
  const pool = new Pool(new URL(instance.baseUrl).origin, { connections: plan.agents, pipelining: 1 })
  let remaining = plan.requests
  let killed: Promise<void> | undefined
  const run = async (agent: Agent) => {
    const job = { ...SHAPE, stream: plan.stream } as ConstructorParameters<typeof Conversation>[0]
    const conversation = new Conversation(job)
    while (remaining > 0) {
      const body = conversation.nextRequest(`${agent.session} ${agent.acknowledged}`)
      const response = await sendRequest(pool, instance, agent.session, body).catch((error) => {
        if (remaining > 0) throw error
      })
      if (response === undefined || remaining <= 0) return
      agent.acknowledged += 1
      remaining -= 1
      if (remaining === 0) killed = children.kill(instance.child)
      if (!plan.stream) conversation.addCompletion(response)
    }
  }
  await Promise.all(agents.map(run))
  await killed
  await pool.destroy()
}

async function sendRequest(
  pool: Pool,
  { baseUrl, headers = {} }: PeerInstance,
  session: string,
  body: Buffer,
): Promise<Buffer> {
  const path = new URL(baseUrl + CHAT_PATH).pathname.replace('%7Bsession%7D', session)
  const { statusCode, body: responseBody } = await pool.request({
    ...{ path, method: 'POST', headers: createHeaders({ headers }, session), body },
  })
  const bytes = Buffer.from(await responseBody.arrayBuffer())
  if (statusCode !== 200) throw new Error(`status ${statusCode}: ${bytes.toString('utf8', 0, 300)}`)
  return bytes
}
