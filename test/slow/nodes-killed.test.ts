/**
 * Four nodes behind a real load balancer, workers that dial all of them, a node that is killed and comes back, and a worker
 * that leaves for good: no answer that an agent has read is lost, no session is on a wrong node, and what a trainer reads
 * is complete.
 */
import OpenAI from 'openai'
import t, { type Test } from 'tap'
import { loadConfig } from '../../src/config/load.ts'
import { WORKER } from '../../src/config/options/worker.ts'
import { startFront } from '../../src/http/front/server.ts'
import { startWorker } from '../../src/main.ts'
import { nodeOfSession } from '../../src/session/nodes.ts'
import { type BalancerKind, PACKAGES, programOf, startBalancer } from '../helpers/balancer.ts'
import { ended, type PipedProcess, said } from '../helpers/children.ts'
import { startEngine } from '../helpers/engine.ts'
import { freePort } from '../helpers/free-port.ts'
import { startLlmProxy } from '../helpers/llm-proxy.ts'
import { silentLogger } from '../helpers/silent-logger.ts'
import { until } from '../helpers/until.ts'

const NODES = 4
const WORKERS = 4
/** More by environment, for a long run by hand. */
const SESSIONS = { haproxy: 100, envoy: 40 }
const MORE = Number(process.env.NODES_SESSIONS ?? 0)
const CALLS = 4
const AT_ONCE = 16

/** A node in a process of its own, which can be killed and started again where it was. */
class Node {
  readonly url: string
  readonly #args: readonly string[]
  #child: PipedProcess | undefined

  constructor(t: Test, number: number, port: number, db: string) {
    this.url = `http://127.0.0.1:${port}`
    this.#args = ['serve', '--mode', 'relay', '--node', `${number}/${NODES}`, '--port', `${port}`, '--db', db]
    t.teardown(() => this.kill())
  }

  async start(): Promise<void> {
    this.#child = startLlmProxy([...this.#args, '--log-level', 'error'])
    await said(this.#child.stdout, /http:\/\/[\d.]+:\d+/)
  }

  async kill(): Promise<void> {
    const child = this.#child
    this.#child = undefined
    if (child === undefined) return
    child.kill('SIGKILL')
    await ended(child)
  }
}

async function startAll(t: Test, kind: BalancerKind) {
  const folder = t.testdir({ balancer: {} })
  const nodes: Node[] = []
  for (let number = 1; number <= NODES; number += 1)
    nodes.push(new Node(t, number, await freePort(), `${folder}/node-${number}.db`))
  await Promise.all(nodes.map((node) => node.start()))
  const engine = await startEngine(t)
  const workers = Array.from({ length: WORKERS }, (_, i) => {
    const proxyUrls = nodes.map(({ url }) => url)
    const config = { ...loadConfig(WORKER, {}, {}), proxyUrls, engineUrls: [engine.url], workerId: `w${i}` }
    const worker = startWorker(config, { logger: silentLogger })
    t.teardown(() => worker.stop(0))
    return worker
  })
  const nodeUrls = nodes.map(({ url }) => url)
  const front = await startFront({
    host: '127.0.0.1',
    port: 0,
    nodeUrls,
    timeoutMs: 60_000,
    logger: silentLogger,
  })
  t.teardown(() => front.close(0))
  await until(async () => (await read(front.url, '/health/workers')).healthy === NODES * WORKERS)
  const hosts = nodeUrls.map((url) => new URL(url).host)
  const url = await startBalancer(
    t,
    kind,
    { front: new URL(front.url).host, nodes: hosts },
    `${folder}/balancer`,
  )
  return { nodes, workers, front, url }
}

// biome-ignore lint/suspicious/noExplicitAny: tests look into answers of any shape
async function read(url: string, path: string): Promise<any> {
  return (await fetch(url + path)).json()
}

/** A rollout of several calls, each of which goes on from the one before. @returns the turns that it read */
async function rollOut(url: string, sessionId: string, onCall: () => void): Promise<string[]> {
  const openai = new OpenAI({ baseURL: `${url}/${sessionId}/v1`, apiKey: 'none', maxRetries: 30 })
  const messages: OpenAI.ChatCompletionMessageParam[] = [{ role: 'user', content: `Begin ${sessionId}.` }]
  const turnIds: string[] = []
  for (let call = 0; call < CALLS; call += 1) {
    const { id, choices } = await openai.chat.completions.create({
      model: 'embedded',
      messages,
      max_tokens: 12,
    })
    turnIds.push(id.replace('chatcmpl-', ''))
    messages.push(choices[0]!.message, { role: 'user', content: 'Go on.' })
    onCall()
  }
  return turnIds
}

for (const kind of ['haproxy', 'envoy'] as const) {
  const count = MORE || SESSIONS[kind]
  const skip = programOf(kind) === undefined && `${kind} is not here (${PACKAGES[kind]})`
  t.test(`${count} sessions behind ${kind}, a node killed and a worker gone`, { skip }, async (t) => {
    const { nodes, workers, front, url } = await startAll(t, kind)
    const ids = Array.from({ length: count }, (_, i) => `rollout-${i}`)
    const acknowledged = new Map<string, string[]>()
    let calls = 0
    const quarter = Promise.withResolvers<void>()
    const onCall = () => {
      calls += 1
      if (calls === Math.floor((count * CALLS) / 4)) quarter.resolve()
    }
    const waiting = [...ids]
    const agent = async () => {
      for (let id = waiting.shift(); id !== undefined; id = waiting.shift())
        acknowledged.set(id, await rollOut(url, id, onCall))
    }
    const agents = Promise.all(Array.from({ length: AT_ONCE }, agent))
    agents.catch(() => {})
    await Promise.race([quarter.promise, agents])
    await nodes[1]!.kill()
    await workers[0]!.stop(0)
    await nodes[1]!.start()
    await agents

    t.equal(acknowledged.size, count, 'every rollout has come to its end')
    const { sessions, partial } = await read(front.url, '/sessions?limit=1000')
    t.notOk(partial)
    t.equal(sessions.length, count, 'each is in one place')
    for (const [place, node] of nodes.entries()) {
      const own = (await read(node.url, '/sessions?limit=1000')).sessions
      t.ok(own.length > 0)
      for (const { session_id: id } of own)
        t.equal(nodeOfSession(id, NODES), place + 1, `${id} is on its node`)
    }
    let lost = 0
    for (const [id, turnIds] of acknowledged) {
      const { turns } = await read(front.url, `/sessions/${id}?ids=false`)
      const completed = turns.filter(({ status }: { status: string }) => status === 'completed')
      const known = new Set(completed.map(({ turn_id: turnId }: { turn_id: string }) => turnId))
      lost += turnIds.filter((turnId) => !known.has(turnId)).length
      const { trajectories, excluded_turns: excluded } = await read(front.url, `/sessions/${id}/trajectories`)
      const trained = trajectories.reduce(
        (sum: number, { num_turns: n }: { num_turns: number }) => sum + n,
        0,
      )
      t.ok(trained >= CALLS, `${id}: ${trained} turns train, ${JSON.stringify(excluded)} do not`)
    }
    t.equal(lost, 0, 'every answer that was read is on record')
  })
}
