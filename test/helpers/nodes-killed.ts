/**
 * Four nodes in processes of their own behind a real load balancer, workers that dial all of them, and rollouts; meanwhile
 * a node is killed and comes back, and a worker leaves for good. What was read, what is on record, and where.
 */
import { mkdirSync } from 'node:fs'
import OpenAI from 'openai'
import type { Test } from 'tap'
import { uiRoutes } from '../../src/inspector/routes/routes.ts'
import type { RunningWorker } from '../../src/main.ts'
import { startFront } from '../../src/proxy/http/front/server.ts'
import { nodeOfSession } from '../../src/proxy/session/state/nodes.ts'
import { type BalancerKind, startBalancer } from './balancer.ts'
import { ended, type PipedProcess, said } from './children.ts'
import { startEngine } from './engine.ts'
import { freePort } from './free-port.ts'
import { startLlmProxy } from './llm-proxy.ts'
import { joinWorker } from './relay-rig.ts'
import { silentLogger } from './silent-logger.ts'
import { until } from './until.ts'

const NODES = 4
const WORKERS = 4
const AT_ONCE = 16
/** Of all calls, when the node is killed. */
const KILL_AFTER = 1 / 4

type Ends = Pick<Test, 'teardown'>

export interface NodesRun {
  balancer: BalancerKind
  sessions: number
  /** Of each session, one after the other. */
  calls: number
  /** For the databases. */
  folder: string
}

export interface NodesFigures {
  seconds: number
  /** Rollouts that came to their end. */
  finished: number
  /** Answers that agents have read to their end. */
  read: number
  /** Requests that the agents' clients sent again. */
  retries: number
  /** Read, and not on record as completed. */
  lost: number
  /** Sessions that a node has and that are another one's. */
  misplaced: number
  perNode: number[]
  /** Sessions in the front's list, and whether it said that it had asked all nodes. */
  listed: number
  listIsPartial: boolean
  /** Turns of all sessions. */
  turns: number
  interrupted: number
  /** Answers that were read and are in no row. */
  untrained: number
  /** Places with mask 1 against tokens of completed turns. */
  trainedTokens: number
  sampledTokens: number
}

/** A node in a process of its own, which can be killed and started again where it was. */
class Node {
  readonly url: string
  readonly #args: readonly string[]
  #child: PipedProcess | undefined

  constructor(t: Ends, number: number, port: number, db: string) {
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

interface Rig {
  nodes: Node[]
  workers: RunningWorker[]
  front: string
  url: string
}

async function startAll(t: Ends, { balancer, folder }: NodesRun): Promise<Rig> {
  mkdirSync(folder, { recursive: true })
  const nodes: Node[] = []
  for (let number = 1; number <= NODES; number += 1)
    nodes.push(new Node(t, number, await freePort(), `${folder}/node-${number}.db`))
  await Promise.all(nodes.map((node) => node.start()))
  const engine = await startEngine(t)
  const nodeUrls = nodes.map(({ url }) => url)
  const workers = Array.from({ length: WORKERS }, (_, i) =>
    joinWorker(t, { proxyUrls: nodeUrls, engineUrls: [engine.url], workerId: `w${i}` }),
  )
  const host = '127.0.0.1'
  const front = await startFront({
    host,
    port: 0,
    nodeUrls,
    timeoutMs: 60_000,
    logger: silentLogger,
    inspector: uiRoutes,
  })
  t.teardown(() => front.close(0))
  await until(async () => (await read(front.url, '/health/workers')).healthy === NODES * WORKERS)
  const hosts = nodeUrls.map((each) => new URL(each).host)
  const url = await startBalancer(t, balancer, { front: new URL(front.url).host, nodes: hosts }, folder)
  return { nodes, workers, front: front.url, url }
}

// biome-ignore lint/suspicious/noExplicitAny: tests look into answers of any shape
async function read(url: string, path: string): Promise<any> {
  return (await fetch(url + path)).json()
}

/** Runs it all. What `t` tears down is everything that was started. */
export async function runNodesKilled(t: Ends, run: NodesRun): Promise<NodesFigures> {
  const rig = await startAll(t, run)
  const startedAtMs = performance.now()
  const agents = new Agents(rig.url, run)
  const whenDone = agents.run()
  await Promise.race([agents.begun, whenDone])
  await rig.nodes[1]!.kill()
  await rig.workers[0]!.stop(0)
  await rig.nodes[1]!.start()
  await whenDone
  const seconds = (performance.now() - startedAtMs) / 1_000
  const { retries, readTurns } = agents
  return { seconds, retries, ...(await recordOf(rig, run, readTurns)) }
}

/** Rollouts of several calls, each of which goes on from the one before. */
class Agents {
  /** Turns whose answers were read, of each rollout that came to its end. */
  readonly readTurns = new Map<string, string[]>()
  retries = 0
  /** Resolves when enough has been read for the node to be killed. */
  readonly begun: Promise<void>
  readonly #begin: () => void
  readonly #url: string
  readonly #run: NodesRun
  #read = 0

  constructor(url: string, run: NodesRun) {
    const { promise, resolve } = Promise.withResolvers<void>()
    this.begun = promise
    this.#begin = resolve
    this.#url = url
    this.#run = run
  }

  async run(): Promise<void> {
    const waiting = Array.from({ length: this.#run.sessions }, (_, i) => `rollout-${i}`)
    const agent = async () => {
      for (let id = waiting.shift(); id !== undefined; id = waiting.shift())
        this.readTurns.set(id, await this.#rollOut(id))
    }
    await Promise.all(Array.from({ length: AT_ONCE }, agent))
  }

  async #rollOut(sessionId: string): Promise<string[]> {
    const openai = new OpenAI({
      baseURL: `${this.#url}/${sessionId}/v1`,
      apiKey: 'none',
      maxRetries: 30,
      fetch: (input, init) => {
        const count = new Headers(init?.headers).get('x-stainless-retry-count') ?? '0'
        if (count !== '0') this.retries += 1
        return fetch(input, init)
      },
    })
    const messages: OpenAI.ChatCompletionMessageParam[] = [{ role: 'user', content: `Begin ${sessionId}.` }]
    const turnIds: string[] = []
    const { calls, sessions } = this.#run
    while (turnIds.length < calls) {
      const wanted = { model: 'embedded', messages, max_tokens: 12 }
      const { id, choices } = await openai.chat.completions.create(wanted)
      turnIds.push(id.replace('chatcmpl-', ''))
      messages.push(choices[0]!.message, { role: 'user', content: 'Go on.' })
      this.#read += 1
      if (this.#read === Math.floor(sessions * calls * KILL_AFTER)) this.#begin()
    }
    return turnIds
  }
}

/** As a trainer reads it, by the front. */
async function recordOf(
  { nodes, front }: Rig,
  { sessions, calls }: NodesRun,
  readTurns: ReadonlyMap<string, string[]>,
) {
  const { sessions: listed, partial } = await read(front, `/sessions?limit=${sessions + 1}`)
  const perNode: number[] = []
  let misplaced = 0
  for (const [place, node] of nodes.entries()) {
    const own = (await read(node.url, `/sessions?limit=${sessions + 1}`)).sessions as { session_id: string }[]
    perNode.push(own.length)
    misplaced += own.filter(({ session_id: id }) => nodeOfSession(id, NODES) !== place + 1).length
  }
  const sum = {
    ...{ finished: readTurns.size, read: readTurns.size * calls, misplaced, perNode },
    ...{ listed: listed.length as number, listIsPartial: partial === true },
    ...{ lost: 0, turns: 0, interrupted: 0, untrained: 0, trainedTokens: 0, sampledTokens: 0 },
  }
  for (const [id, turnIds] of readTurns) {
    const { turns } = await read(front, `/sessions/${id}`)
    const { trajectories } = await read(front, `/sessions/${id}/trajectories`)
    const completed = new Map<string, Turn>(
      turns.filter(isCompleted).map((turn: Turn) => [turn.turn_id, turn]),
    )
    const trained = new Set(
      trajectories.flatMap((row: Row) => row.turns.map(({ turn_id: turnId }) => turnId)),
    )
    sum.turns += turns.length
    sum.interrupted += turns.filter(({ status }: Turn) => status === 'interrupted').length
    sum.lost += turnIds.filter((turnId) => !completed.has(turnId)).length
    sum.untrained += turnIds.filter((turnId) => !trained.has(turnId)).length
    for (const { completion_token_ids: ids } of completed.values()) sum.sampledTokens += ids.length
    for (const { response_mask: mask } of trajectories as Row[])
      sum.trainedTokens += mask.reduce((ones, bit) => ones + bit, 0)
  }
  return sum
}

interface Turn {
  turn_id: string
  status: string
  completion_token_ids: number[]
}

interface Row {
  turns: { turn_id: string }[]
  response_mask: number[]
}

function isCompleted({ status }: Turn): boolean {
  return status === 'completed'
}
