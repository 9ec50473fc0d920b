/**
 * Agents that each send a request, read the complete response and send the next request, over keep-alive connections.
 * The parent sends the process one job at a time.
 */
import { Pool } from 'undici'
import { Conversation } from '../parts/conversation.ts'
import { createHeaders } from '../parts/headers.ts'
import type { LoadJob, LoadResult } from '../parts/load-job.ts'
import { getCpuSeconds } from '../parts/proc-stat.ts'
import { quantile } from '../parts/statistics.ts'

process.on('message', (job: LoadJob) => {
  run(job).then(
    (result) => process.send!(result),
    (error) => {
      throw error
    },
  )
})

interface LoadCounts {
  latenciesMs: number[]
  firstByteMs: number[]
  failures: number
  firstFailure: string | null
}

interface AgentResponse {
  status: number
  /** Ends of events (blank lines) in a stream. */
  events: number
  firstByteMs: number
  /** Chunks of the body; empty for a stream, whose body the agent does not need. */
  chunks: Buffer[]
}

async function run(job: LoadJob): Promise<LoadResult> {
  const pool = new Pool(new URL(job.url).origin, {
    connections: job.concurrency,
    pipelining: 1,
    bodyTimeout: 120_000,
    headersTimeout: 120_000,
  })
  try {
    if (job.warmUpMs > 0) await runFor(pool, { ...job, durationMs: job.warmUpMs })
    return await measure(pool, job)
  } finally {
    await pool.destroy()
  }
}

async function measure(pool: Pool, job: LoadJob): Promise<LoadResult> {
  const cpuBefore = getCpu(job)
  const startedAt = performance.now()
  const counts = await runFor(pool, job)
  const seconds = (performance.now() - startedAt) / 1000
  const cpu = getCpu(job) - cpuBefore
  const requests = counts.latenciesMs.length
  return {
    requests,
    failures: counts.failures,
    firstFailure: counts.firstFailure,
    seconds,
    requestsPerSecond: requests / seconds,
    tokensPerSecond: (requests * job.maxTokens) / seconds,
    p50Ms: quantile(counts.latenciesMs, 0.5),
    p99Ms: quantile(counts.latenciesMs, 0.99),
    firstByteP50Ms: quantile(counts.firstByteMs, 0.5),
    cpuMsPerRequest: (cpu * 1000) / requests,
    cpuSeconds: cpu,
  }
}

function getCpu({ watchPid }: LoadJob): number {
  return watchPid === undefined ? Number.NaN : getCpuSeconds(watchPid)
}

async function runFor(pool: Pool, job: LoadJob): Promise<LoadCounts> {
  const counts: LoadCounts = { latenciesMs: [], firstByteMs: [], failures: 0, firstFailure: null }
  // Agents are created first: building their histories takes time.
  const agents = Array.from({ length: job.concurrency }, (_, slot) => getAgent(job, slot))
  const deadline = performance.now() + job.durationMs
  let requestsLeft = job.maxRequests ?? Number.POSITIVE_INFINITY
  const maySend = () => performance.now() < deadline && requestsLeft-- > 0
  await Promise.all(agents.map((agent) => agent.sendWhile(maySend, pool, job, counts)))
  return counts
}

/** Agents continue from the previous job, so that few requests are the first ones of their session. */
const agents = new Map<string, Agent>()

function getAgent(job: LoadJob, slot: number): Agent {
  const name = `${new URL(job.url).port}-${job.bodyBytes}-${job.stream ? 's' : 'w'}-${slot}`
  let agent = agents.get(name)
  if (!agent) {
    agent = new Agent(name, job)
    agents.set(name, agent)
  }
  return agent
}

class Agent {
  readonly #name: string
  #conversation: Conversation
  #requests = 0

  constructor(name: string, job: LoadJob) {
    this.#name = name
    this.#conversation = new Conversation(job)
  }

  async sendWhile(maySend: () => boolean, pool: Pool, job: LoadJob, counts: LoadCounts): Promise<void> {
    while (maySend()) {
      const session = `bench-${this.#name}-${Math.floor(this.#requests / job.requestsPerSession)}`
      const body = this.#conversation.nextRequest(`${this.#name} ${this.#requests}`)
      this.#requests += 1
      const sessionJob = { ...job, headers: createHeaders(job, session) }
      this.#conversation.addCompletion(
        await sendRequest(pool, getPath(job.url, session), body, sessionJob, counts),
      )
      if (this.#requests % job.requestsPerSession !== 0) continue
      this.#conversation = new Conversation(job)
      if (job.completeUrl)
        await post(pool, getPath(job.completeUrl, session), Buffer.from('{}'), {
          ...sessionJob,
          stream: false,
        })
    }
  }
}

/** A job with the headers of one session. */
type SessionJob = LoadJob & { headers: Record<string, string> }

/**
 * Sends a request.
 * @returns the body of a response that is not streamed
 */
async function sendRequest(
  pool: Pool,
  path: string,
  body: Buffer,
  job: SessionJob,
  counts: LoadCounts,
): Promise<Buffer> {
  const startedAt = performance.now()
  let failure: string | undefined
  let response: AgentResponse | undefined
  try {
    response = await post(pool, path, body, job)
    const isComplete = response.status === 200 && (!job.stream || response.events >= job.maxTokens)
    if (!isComplete) failure = `status ${response.status}, ${response.events} events: ${getExcerpt(response)}`
    counts.firstByteMs.push(response.firstByteMs - startedAt)
  } catch (error) {
    failure = String(error)
  }
  counts.latenciesMs.push(performance.now() - startedAt)
  if (failure !== undefined) {
    counts.failures += 1
    counts.firstFailure ??= failure
  }
  return Buffer.concat(response?.chunks ?? [])
}

function getExcerpt({ chunks }: AgentResponse): string {
  return Buffer.concat(chunks).toString('utf8', 0, 300)
}

/**
 * Sends a request without fetch and streams, because a cheap agent leaves more of the machine to the measured
 * processes.
 */
function post(
  pool: Pool,
  path: string,
  body: Buffer,
  { stream, headers }: { stream: boolean; headers: Record<string, string> },
): Promise<AgentResponse> {
  const { promise, resolve, reject } = Promise.withResolvers<AgentResponse>()
  const response: AgentResponse = { status: 0, events: 0, firstByteMs: 0, chunks: [] }
  let endedWithLf = false
  pool.dispatch(
    { path, method: 'POST', headers, body },
    {
      onRequestStart() {},
      onResponseStart(_controller, status) {
        response.status = status
      },
      onResponseData(_controller, bytes) {
        if (response.firstByteMs === 0) response.firstByteMs = performance.now()
        if (!stream || response.status !== 200) response.chunks.push(bytes)
        response.events += countEvents(bytes, endedWithLf)
        endedWithLf = bytes.at(-1) === 0x0a
      },
      onResponseEnd() {
        resolve(response)
      },
      onResponseError(_controller, error) {
        reject(error)
      },
    },
  )
  return promise
}

/** Counts blank lines, which may be split between two reads of the socket. */
function countEvents(bytes: Buffer, endedWithLf: boolean): number {
  let count = endedWithLf && bytes[0] === 0x0a ? 1 : 0
  for (let offset = bytes.indexOf('\n\n'); offset !== -1; offset = bytes.indexOf('\n\n', offset + 2))
    count += 1
  return count
}

function getPath(url: string, session: string): string {
  return new URL(url).pathname.replace('%7Bsession%7D', session)
}
