/** The agents of the soak: each runs sessions in succession until the time is up. */
import { setTimeout as sleep } from 'node:timers/promises'
import { Agent, type Dispatcher, request } from 'undici'
import { seededRandom } from '../parts/text.ts'
import { type ChatMessage, type Ending, sendAttempt } from './attempt.ts'
import { type Attempt, checkSession, type RecordedRow, type RecordedTurn } from './check-session.ts'
import type { SoakWorld } from './world.ts'

export interface SoakCounts {
  /** Attempts. `--json` files have these names. */
  requests: number
  sessions: number
  /** Sessions that their agents never ended. */
  abandoned: number
  longestMs: number
  endings: Record<Ending['kind'], number>
  /** Rejected requests by error code. */
  codes: Record<string, number>
  /**
   * For each request with a complete response: when it ended, how long it took, and whether the proxy was unavailable
   * meanwhile.
   */
  times: { atMs: number; ms: number; wasAway: boolean }[]
  faults: string[]
}

interface AgentsPlan {
  count: number
  untilMs: number
  thinkMs: number
  seed: number
}

const MAX_REQUESTS = 11
const MAX_TOKENS = 32
const DISCONNECT_SHARE = 0.02
const MAX_CONNECTED_MS = 800
const MAX_ATTEMPTS = 8
const RETRY_MS = 3_000
const ABANDONED_SHARE = 0.3
const DELETED_SHARE = 0.3
/** The attempts of a trainer's read or change, which must succeed once the proxy is available. */
const TRAINER_ATTEMPTS = 40

/** Runs the agents until the deadline, and checks every session, including the last ones. */
export async function runAgents(world: SoakWorld, plan: AgentsPlan, counts: SoakCounts): Promise<void> {
  await using stack = new AsyncDisposableStack()
  const agent = new Agent({ connections: plan.count, pipelining: 1 })
  const dispatcher = stack.adopt(agent, () => agent.close())
  const stop = AbortSignal.timeout(Math.max(0, plan.untilMs - Date.now()))
  const runAgent = async (number: number) => {
    const random = seededRandom(plan.seed + number)
    await pause(plan.thinkMs * random(), stop)
    for (let session = 0; !stop.aborted; session += 1) {
      const context = { world, random, thinkMs: plan.thinkMs, stop, dispatcher, counts }
      const id = `soak-${number}-${session}`
      await new SoakSession(id, context).run().catch((error) => counts.faults.push(`${id}: ${error.message}`))
    }
  }
  await Promise.all(Array.from({ length: plan.count }, (_, number) => runAgent(number)))
}

export function createCounts(): SoakCounts {
  return {
    requests: 0,
    sessions: 0,
    abandoned: 0,
    longestMs: 0,
    endings: { answered: 0, refused: 0, left: 0, broken: 0 },
    codes: {},
    times: [],
    faults: [],
  }
}

interface AgentContext {
  world: SoakWorld
  random: () => number
  thinkMs: number
  stop: AbortSignal
  dispatcher: Dispatcher
  counts: SoakCounts
}

class SoakSession {
  readonly #id: string
  readonly #context: AgentContext
  readonly #messages: ChatMessage[] = [{ role: 'system', content: 'You mend programs.' }]
  readonly #attempts: Attempt[] = []

  constructor(id: string, context: AgentContext) {
    this.#id = id
    this.#context = context
  }

  async run(): Promise<void> {
    const { random, stop, thinkMs, counts } = this.#context
    const requests = 1 + Math.floor(random() * MAX_REQUESTS)
    for (let number = 0; number < requests && !stop.aborted; number += 1) {
      if (!(await this.#sendRequest(number))) break
      await pause(thinkMs * (0.5 + random()), stop)
    }
    counts.sessions += 1
    await this.#finish()
  }

  /**
   * Sends a request, and retries it until there is a complete response.
   * @returns whether there is one
   */
  async #sendRequest(number: number): Promise<boolean> {
    const { random } = this.#context
    this.#messages.push({ role: 'user', content: `${this.#id} call ${number}` })
    for (let retry = 0; retry < MAX_ATTEMPTS; retry += 1) {
      const ending = await this.#sendAttempt(retry)
      if (ending.kind === 'answered') {
        this.#messages.push({ role: 'assistant', content: random() < 0.5 ? ending.text : ending.text.trim() })
        return true
      }
      if (ending.kind === 'left') return false
      await sleep(RETRY_MS * (0.5 + random()))
    }
    return false
  }

  async #sendAttempt(retry: number): Promise<Ending> {
    const { world, random, dispatcher, counts } = this.#context
    const attempt = {
      url: `${world.url}/${this.#id}/v1/chat/completions`,
      messages: this.#messages,
      stream: random() < 0.5,
      maxTokens: 1 + Math.floor(random() * MAX_TOKENS),
      retry,
      disconnectAfterMs: random() < DISCONNECT_SHARE ? Math.floor(random() * MAX_CONNECTED_MS) : undefined,
    }
    const sentAtMs = Date.now()
    const ending = await sendAttempt(attempt, dispatcher)
    const atMs = Date.now()
    const wasUnavailable = world.wasUnavailable(sentAtMs, atMs)
    this.#attempts.push({
      marker: this.#messages.at(-1)!.content,
      ending,
      wasUnavailable,
      weights: world.getWeightVersions(sentAtMs, atMs),
    })
    counts.longestMs = Math.max(counts.longestMs, atMs - sentAtMs)
    if (ending.kind === 'answered') counts.times.push({ atMs, ms: atMs - sentAtMs, wasAway: wasUnavailable })
    counts.requests += 1
    counts.endings[ending.kind] += 1
    if (ending.kind === 'refused') counts.codes[ending.code] = (counts.codes[ending.code] ?? 0) + 1
    return ending
  }

  /** Reads the session as a trainer does. Some sessions are ended before, some deleted after, and some abandoned. */
  async #finish(): Promise<void> {
    const { random, counts } = this.#context
    const isAbandoned = random() < ABANDONED_SHARE
    const reward = Math.round(random() * 100) / 100
    // If its only request was abandoned before the proxy read it, there may be no session yet.
    let isRewarded = false
    if (isAbandoned) counts.abandoned += 1
    else {
      isRewarded = (await this.#sendTrainerRequest('POST', '/reward', { reward })) !== undefined
      await this.#sendTrainerRequest('POST', '/complete', {})
    }
    const session = await this.#sendTrainerRequest('GET', '')
    const read = await this.#sendTrainerRequest('GET', '/trajectories')
    if (session === undefined || read === undefined) {
      if (this.#attempts.some(({ ending }) => ending.kind === 'answered'))
        counts.faults.push(`${this.#id}: received completions, and cannot be read`)
      return
    }
    const { turns } = session as { turns: RecordedTurn[] }
    const { trajectories } = read as { trajectories: RecordedRow[] }
    counts.faults.push(...checkSession(turns, trajectories, this.#attempts))
    if (isRewarded && (session as { reward: number }).reward !== reward)
      counts.faults.push(`${this.#id}: the reward is not ${reward}`)
    if (!isAbandoned && random() < DELETED_SHARE) await this.#sendTrainerRequest('DELETE', '')
  }

  /**
   * Sends a trainer's request.
   * @returns undefined if the target does not exist
   * @throws Error if the proxy does not respond for a long time
   */
  async #sendTrainerRequest(
    method: 'GET' | 'POST' | 'DELETE',
    path: string,
    body?: object,
  ): Promise<unknown> {
    const { world, dispatcher } = this.#context
    const headers = { 'content-type': 'application/json' }
    let failure = ''
    for (let attempt = 0; attempt < TRAINER_ATTEMPTS; attempt += 1) {
      try {
        const response = await request(`${world.url}/sessions/${this.#id}${path}`, {
          method,
          ...(body && { headers, body: JSON.stringify(body) }),
          dispatcher,
        })
        const text = await response.body.text()
        if (response.statusCode === 200) return JSON.parse(text)
        if (response.statusCode === 404) return undefined
        failure = text
      } catch (error) {
        failure = String(error)
      }
      await sleep(RETRY_MS / 2)
    }
    throw new Error(`${method} ${this.#id}${path}: ${failure}`)
  }
}

async function pause(ms: number, signal: AbortSignal): Promise<void> {
  await sleep(ms, undefined, { signal }).catch(() => {})
}
