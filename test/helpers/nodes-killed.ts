/**
 * Several nodes in processes of their own on one PostgreSQL database, workers that dial all of them, and rollouts with
 * sub-agents side by side; meanwhile nodes are killed and come back, one is stopped for longer than its lease, and a worker
 * leaves for good. What was read, and what is on record.
 */
import { globSync, mkdirSync } from 'node:fs'
import OpenAI from 'openai'
import type { Test } from 'tap'
import type { RunningWorker } from '../../src/main.ts'
import { type BalancerKind, startBalancer } from './balancer.ts'
import { ended, type PipedProcess, said } from './children.ts'
import { startEngine } from './engine.ts'
import { freePort } from './free-port.ts'
import { startLlmProxy } from './llm-proxy.ts'
import { joinWorker } from './relay-rig.ts'
import { until } from './until.ts'

const NODES = 3
const WORKERS = 3
const AT_ONCE = 12
/** Sub-agents that each call of the main agent starts, in sessions' every third call. */
const SUBAGENTS = 2
/** A lease is six seconds long. */
const STOPPED_MS = 18_000

type Ends = Pick<Test, 'teardown'>

/** The library that gives a process another clock, of Debian's package `faketime`; undefined: it is not here. */
export const faketime: string | undefined = globSync('/usr/lib/*/faketime/libfaketimeMT.so.1')[0]

export interface NodesRun {
  /** `in turn`: each call goes to the next node, and where that one does not answer, to the one behind it. */
  balancer: BalancerKind | 'in turn'
  db: string
  sessions: number
  /** Of each main agent, one after the other. */
  calls: number
  /** How often a node is killed while rollouts run, each time another one, and when they begin and end. */
  kills: number
  /** Whether one is stopped, too, and let go on. */
  stops: boolean
  /** The first node's clock is an hour ahead, the last one's an hour behind; needs {@link faketime}. */
  skews?: boolean
  /** For the balancer's configuration. */
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
  /** Sessions in the list of any node. */
  listed: number
  turns: number
  interrupted: number
  /** Answers that were read and are in no row. */
  untrained: number
  /** Turns that are trained in more than one row. */
  twice: number
}

/** A node in a process of its own, which can be killed and started again where it was. */
class Node {
  readonly url: string
  readonly #args: readonly string[]
  readonly #env: Record<string, string>
  #child: PipedProcess | undefined

  constructor(t: Ends, port: number, env: Record<string, string>) {
    this.url = `http://127.0.0.1:${port}`
    this.#env = env
    this.#args = ['serve', '--mode', 'relay', '--port', `${port}`, '--log-level', 'error']
    t.teardown(() => this.kill())
  }

  async start(): Promise<void> {
    this.#child = startLlmProxy(this.#args, { env: this.#env })
    await said(this.#child.stdout, /http:\/\/[\d.]+:\d+/)
  }

  async kill(): Promise<void> {
    const child = this.#child
    this.#child = undefined
    if (child === undefined) return
    child.kill('SIGKILL')
    await ended(child)
  }

  signal(signal: NodeJS.Signals): void {
    this.#child?.kill(signal)
  }
}

interface Rig {
  nodes: Node[]
  workers: RunningWorker[]
  /** Where an agent's call number so and so goes. */
  urls: readonly string[]
}

/** Timers go by the true clock, which no setting changes. */
function clockOf(number: number): Record<string, string> {
  const offset = number === 1 ? '+1h' : number === NODES ? '-1h' : undefined
  if (offset === undefined) return {}
  return { LD_PRELOAD: faketime!, FAKETIME: offset, FAKETIME_DONT_FAKE_MONOTONIC: '1' }
}

async function startAll(t: Ends, { balancer, folder, db, skews = false }: NodesRun): Promise<Rig> {
  mkdirSync(folder, { recursive: true })
  const nodes: Node[] = []
  for (let number = 1; number <= NODES; number += 1) {
    const env = { DATABASE_URL: db, ...(skews && clockOf(number)) }
    nodes.push(new Node(t, await freePort(), env))
  }
  await Promise.all(nodes.map((node) => node.start()))
  const engine = await startEngine(t)
  const proxyUrls = nodes.map(({ url }) => url)
  const workers = Array.from({ length: WORKERS }, (_, i) =>
    joinWorker(t, { proxyUrls, engineUrls: [engine.url], workerId: `w${i}` }),
  )
  for (const { url } of nodes)
    await until(async () => (await read(url, '/health/workers')).healthy === WORKERS)
  const hosts = proxyUrls.map((each) => new URL(each).host)
  const urls = balancer === 'in turn' ? proxyUrls : [await startBalancer(t, balancer, hosts, folder)]
  return { nodes, workers, urls }
}

// biome-ignore lint/suspicious/noExplicitAny: tests look into answers of any shape
async function read(url: string, path: string): Promise<any> {
  return (await fetch(url + path)).json()
}

/** Runs it all. What `t` tears down is everything that was started. */
export async function runNodesKilled(t: Ends, run: NodesRun): Promise<NodesFigures> {
  const rig = await startAll(t, run)
  const startedAtMs = performance.now()
  const agents = new Agents(rig.urls, run)
  const whenDone = agents.run()
  const stopped = run.stops ? stopOne(rig.nodes.at(-1)!, agents, whenDone) : undefined
  for (let kill = 0; kill < run.kills; kill += 1) {
    await Promise.race([agents.untilRead((kill + 1) / (run.kills + 1)), whenDone])
    const node = rig.nodes[kill % (run.stops ? NODES - 1 : NODES)]!
    await node.kill()
    if (kill === 0) await rig.workers[0]!.stop(0)
    await node.start()
  }
  await whenDone
  await stopped
  const seconds = (performance.now() - startedAtMs) / 1_000
  const { retries, readTurns } = agents
  return { seconds, retries, finished: agents.finished, ...(await recordOf(rig.nodes[0]!, run, readTurns)) }
}

/** As a machine does that is suspended: its connections stay open, and it answers nobody. */
async function stopOne(node: Node, agents: Agents, whenDone: Promise<void>): Promise<void> {
  await Promise.race([agents.untilRead(1 / 8), whenDone])
  node.signal('SIGSTOP')
  await new Promise((resolve) => setTimeout(resolve, STOPPED_MS))
  node.signal('SIGCONT')
}

/** Rollouts of several calls, each of which goes on from the one before; some have sub-agents that call at the same time. */
class Agents {
  /** Turns whose answers were read, of each rollout. */
  readonly readTurns = new Map<string, string[]>()
  retries = 0
  finished = 0
  readonly #urls: readonly string[]
  readonly #run: NodesRun
  readonly #watchers = new Map<number, () => void>()
  #asked = 0
  #read = 0

  constructor(urls: readonly string[], run: NodesRun) {
    this.#urls = urls
    this.#run = run
  }

  /** Resolves when main agents have read this share of their answers. */
  untilRead(share: number): Promise<void> {
    const { promise, resolve } = Promise.withResolvers<void>()
    this.#watchers.set(Math.ceil(this.#run.sessions * this.#run.calls * share), resolve)
    return promise
  }

  async run(): Promise<void> {
    const waiting = Array.from({ length: this.#run.sessions }, (_, i) => `rollout-${i}`)
    const agent = async () => {
      for (let id = waiting.shift(); id !== undefined; id = waiting.shift()) {
        this.readTurns.set(id, [])
        await this.#rollOut(id)
        this.finished += 1
      }
    }
    await Promise.all(Array.from({ length: AT_ONCE }, agent))
  }

  async #rollOut(sessionId: string): Promise<void> {
    const messages: OpenAI.ChatCompletionMessageParam[] = [{ role: 'user', content: `Begin ${sessionId}.` }]
    for (let call = 0; call < this.#run.calls; call += 1) {
      const subagents = Array.from({ length: call % 3 === 1 ? SUBAGENTS : 0 }, (_, place) =>
        this.#ask(sessionId, [{ role: 'user', content: `Help number ${place} with step ${call}.` }]),
      )
      const [answer] = await Promise.all([this.#ask(sessionId, messages), ...subagents])
      messages.push(answer, { role: 'user', content: 'Go on.' })
      this.#read += 1
      this.#watchers.get(this.#read)?.()
    }
  }

  async #ask(sessionId: string, messages: OpenAI.ChatCompletionMessageParam[]) {
    const openai = new OpenAI({
      baseURL: `http://balanced/${sessionId}/v1`,
      apiKey: 'none',
      maxRetries: 30,
      fetch: (input, init) => {
        const count = new Headers(init?.headers).get('x-stainless-retry-count') ?? '0'
        if (count !== '0') this.retries += 1
        this.#asked += 1
        const { pathname } = new URL(String(input))
        return fetch(this.#urls[this.#asked % this.#urls.length] + pathname, init)
      },
    })
    const wanted = { model: 'embedded', messages, max_tokens: 12 }
    const { id, choices } = await openai.chat.completions.create(wanted)
    this.readTurns.get(sessionId)!.push(id.replace('chatcmpl-', ''))
    return choices[0]!.message
  }
}

/** As a trainer reads it, of any node. */
async function recordOf(node: Node, { sessions }: NodesRun, readTurns: ReadonlyMap<string, string[]>) {
  const { sessions: listed } = await read(node.url, `/sessions?limit=${sessions + 1}`)
  const sum = {
    read: 0,
    listed: listed.length as number,
    lost: 0,
    turns: 0,
    interrupted: 0,
    untrained: 0,
    twice: 0,
  }
  for (const [id, turnIds] of readTurns) {
    const { turns } = await read(node.url, `/sessions/${id}`)
    const { trajectories } = await read(node.url, `/sessions/${id}/trajectories`)
    const completed = new Set(
      (turns as Turn[]).filter(({ status }) => status === 'completed').map((turn) => turn.turn_id),
    )
    const trained = (trajectories as Row[]).flatMap(trainedTurns)
    sum.read += turnIds.length
    sum.turns += turns.length
    sum.interrupted += (turns as Turn[]).filter(({ status }) => status === 'interrupted').length
    sum.lost += turnIds.filter((turnId) => !completed.has(turnId)).length
    sum.untrained += turnIds.filter((turnId) => !trained.includes(turnId)).length
    sum.twice += trained.length - new Set(trained).size
  }
  return sum
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
