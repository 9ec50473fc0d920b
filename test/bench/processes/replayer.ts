/**
 * Agents that replay the shapes of real sessions, each with sequential requests, over keep-alive connections. The
 * parent sends the process one job at a time.
 */
import { Pool } from 'undici'
import { createHeaders } from '../parts/headers.ts'
import { addScaled, getCpuSeconds, getThreadSeconds } from '../parts/proc-stat.ts'
import {
  REPLAY_PATHS,
  type ReplayDialect,
  type ReplayJob,
  type ReplayResult,
  type Shape,
} from '../parts/replay-job.ts'
import { createScript, ReplayedConversation } from '../parts/replayed-conversation.ts'
import { quantile } from '../parts/statistics.ts'

const REQUEST_TIMEOUT_MS = 120_000

process.on('message', (job: ReplayJob) => {
  replay(job).then(
    (result) => process.send!(result),
    (error) => {
      throw error
    },
  )
})

type PreparedRequest = ReturnType<ReplayedConversation['nextRequest']>

interface ReplayCounts {
  latenciesMs: number[]
  /** The times of each agent's first request. */
  firstMs: number[]
  inputTokens: number
  failures: number
  firstFailure: string | null
}

async function replay(job: ReplayJob): Promise<ReplayResult> {
  const options = { connections: job.concurrency, pipelining: 1, bodyTimeout: REQUEST_TIMEOUT_MS }
  const pool = new Pool(new URL(job.baseUrl).origin, { ...options, headersTimeout: REQUEST_TIMEOUT_MS })
  try {
    // Build the requests before, so that no agent waits until others have built theirs.
    if (job.warmUpMs === 'crowd') for (const agent of getAgents(job)) agent.prepare()
    else await runFor(pool, job, job.warmUpMs)
    const cpuBefore = job.watchPids.map(getCpuSeconds)
    const threadsBefore = readThreadSeconds(job)
    const startedAt = performance.now()
    const counts = await runFor(pool, job, job.durationMs)
    const seconds = (performance.now() - startedAt) / 1000
    const turns = counts.latenciesMs.length
    return {
      turns,
      failures: counts.failures,
      firstFailure: counts.firstFailure,
      turnsPerSecond: turns / seconds,
      inputTokensPerSecond: counts.inputTokens / seconds,
      p50Ms: quantile(counts.latenciesMs, 0.5),
      p99Ms: quantile(counts.latenciesMs, 0.99),
      firstP50Ms: quantile(counts.firstMs, 0.5),
      firstP99Ms: quantile(counts.firstMs, 0.99),
      cpuMsPerTurn: job.watchPids.map(
        (pid, index) => ((getCpuSeconds(pid) - cpuBefore[index]!) * 1000) / turns,
      ),
      threadCpuMsPerTurn: computeThreadCpuMs(threadsBefore, job, turns),
    }
  } finally {
    await pool.destroy()
  }
}

function computeThreadCpuMs(
  before: Record<string, number>,
  job: ReplayJob,
  turns: number,
): Record<string, number> {
  const ms = {}
  addScaled(ms, readThreadSeconds(job), 1000 / turns)
  addScaled(ms, before, -1000 / turns)
  return ms
}

function readThreadSeconds({ watchPids: [pid] }: ReplayJob): Record<string, number> {
  return pid === undefined ? {} : getThreadSeconds(pid)
}

/** Runs for a time; each agent sends at least one request. */
async function runFor(pool: Pool, job: ReplayJob, durationMs: number): Promise<ReplayCounts> {
  const counts: ReplayCounts = {
    latenciesMs: [],
    firstMs: [],
    inputTokens: 0,
    failures: 0,
    firstFailure: null,
  }
  const deadline = performance.now() + durationMs
  const agents = getAgents(job)
  const run = async (agent: Agent) => {
    counts.firstMs.push(await agent.sendRequest(pool, job, counts))
    while (performance.now() < deadline) await agent.sendRequest(pool, job, counts)
  }
  await Promise.all(agents.map(run))
  return counts
}

/** Agents continue from the previous job, so that few requests are the first ones of their session. */
const agents = new Map<string, Agent>()

function getAgents(job: ReplayJob): Agent[] {
  return Array.from({ length: job.concurrency }, (_, number) => getAgent(job, number))
}

function getAgent(job: ReplayJob, number: number): Agent {
  const name = `${new URL(job.baseUrl).port}-${job.dialect}-${JSON.stringify(job.shape)}-${number}`
  let agent = agents.get(name)
  if (!agent) {
    agent = new Agent(job.dialect, job.shape, number)
    agents.set(name, agent)
  }
  return agent
}

class Agent {
  readonly #dialect: ReplayDialect
  readonly #shape: Shape
  readonly #number: number
  #sessions = 0
  /** One conversation, or those of a main agent and its sub-agent. */
  #conversations: ReplayedConversation[]
  #requests = 0
  #prepared: PreparedRequest | undefined

  constructor(dialect: ReplayDialect, shape: Shape, number: number) {
    this.#dialect = dialect
    this.#shape = shape
    this.#number = number
    this.#conversations = this.#startSession(number)
  }

  #startSession(from: number): ReplayedConversation[] {
    const { script, from: step } = createScript(this.#shape, from)
    const seed = 2 * (this.#number * 1_000 + this.#sessions)
    const count = this.#shape.kind === 'sub-agent' ? 2 : 1
    return Array.from(
      { length: count },
      (_, index) =>
        new ReplayedConversation(this.#dialect, script, this.#sessions === 0 ? step : 0, seed + index),
    )
  }

  /** Builds the next request. */
  prepare(): void {
    this.#prepared ??= this.#createRequest()
  }

  #createRequest(): PreparedRequest {
    if (this.#conversations.some((conversation) => conversation.isOver)) {
      this.#sessions += 1
      this.#conversations = this.#startSession(this.#number + this.#sessions)
    }
    const conversation = this.#conversations[this.#requests % this.#conversations.length]!
    this.#requests += 1
    return conversation.nextRequest()
  }

  /**
   * Sends a request.
   * @returns its duration in milliseconds
   */
  async sendRequest(pool: Pool, job: ReplayJob, counts: ReplayCounts): Promise<number> {
    const { body, promptTokens } = this.#prepared ?? this.#createRequest()
    this.#prepared = undefined
    const base = new URL(job.baseUrl).pathname.replace(/\/$/, '')
    const session = `replay-${this.#dialect}-${this.#number}-${this.#sessions}`
    const path = (base + (job.path ?? REPLAY_PATHS[this.#dialect])).replace('%7Bsession%7D', session)
    const headers = createHeaders(job, session)
    const startedAt = performance.now()
    const failure = await post(pool, path, headers, body)
    const tookMs = performance.now() - startedAt
    counts.latenciesMs.push(tookMs)
    counts.inputTokens += promptTokens
    if (failure !== undefined) {
      counts.failures += 1
      counts.firstFailure ??= failure
    }
    return tookMs
  }
}

/** The end of a complete stream in each dialect. */
const END_MARKERS = ['[DONE]', '"message_stop"', '"response.completed"']
const MAX_END_BYTES = 32

/**
 * Sends a request.
 * @returns the error of the response
 */
function post(
  pool: Pool,
  path: string,
  headers: Record<string, string>,
  body: Buffer,
): Promise<string | undefined> {
  const { promise, resolve } = Promise.withResolvers<string | undefined>()
  let status = 0
  let isComplete = false
  let last: Buffer = Buffer.alloc(0)
  pool.dispatch(
    { path, method: 'POST', headers, body },
    {
      onRequestStart() {},
      onResponseStart(_controller, code) {
        status = code
      },
      onResponseData(_controller, chunk) {
        // The end may be split between two reads of the socket.
        last = Buffer.concat([last.subarray(-MAX_END_BYTES), chunk])
        isComplete ||= END_MARKERS.some((end) => last.includes(end))
      },
      onResponseEnd() {
        const excerpt = last.toString('utf8', 0, 300)
        resolve(status === 200 && isComplete ? undefined : `${path}: status ${status}, no end in: ${excerpt}`)
      },
      onResponseError(_controller, error) {
        resolve(String(error))
      },
    },
  )
  return promise
}
