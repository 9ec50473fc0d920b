/** The agents of the soak: each runs sessions in succession until the time is up. */
import { setTimeout as sleep } from 'node:timers/promises'
import { Agent, type Dispatcher, request } from 'undici'
import { seededRandom } from '../parts/text.ts'
import { type ChatMessage, type Ending, makeCall } from './call.ts'
import { checkSession, type RecordedRow, type RecordedTurn, type SeenCall } from './check-session.ts'
import type { SoakWorld } from './world.ts'

export interface SoakCounts {
  calls: number
  sessions: number
  /** Sessions that were never ended. */
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

export interface AgentsPlan {
  count: number
  untilMs: number
  thinkMs: number
  seed: number
}

const MAX_CALLS = 11
const MAX_TOKENS = 32
const LEAVING_SHARE = 0.02
const MAX_STAY_MS = 800
const MAX_TRIES = 8
const RETRY_MS = 3_000
const ABANDONED_SHARE = 0.3
const DELETED_SHARE = 0.3
/** The attempts of a trainer's read or change, which must succeed once the proxy is available. */
const TRAINER_TRIES = 40

/** Runs the agents until the deadline; every session is checked, including the last ones. */
export async function runAgents(world: SoakWorld, plan: AgentsPlan, counts: SoakCounts): Promise<void> {
  await using dispatcher = asDisposable(new Agent({ connections: plan.count, pipelining: 1 }))
  const stop = AbortSignal.timeout(Math.max(0, plan.untilMs - Date.now()))
  const runAgent = async (number: number) => {
    const random = seededRandom(plan.seed + number)
    await rest(plan.thinkMs * random(), stop)
    for (let session = 0; !stop.aborted; session += 1) {
      const life = { world, random, thinkMs: plan.thinkMs, stop, dispatcher: dispatcher.value, tally: counts }
      const id = `soak-${number}-${session}`
      await new SoakSession(id, life).run().catch((error) => counts.faults.push(`${id}: ${error.message}`))
    }
  }
  await Promise.all(Array.from({ length: plan.count }, (_, number) => runAgent(number)))
}

export function createCounts(): SoakCounts {
  return {
    calls: 0,
    sessions: 0,
    abandoned: 0,
    longestMs: 0,
    endings: { answered: 0, refused: 0, left: 0, broken: 0 },
    codes: {},
    times: [],
    faults: [],
  }
}

interface Life {
  world: SoakWorld
  random: () => number
  thinkMs: number
  stop: AbortSignal
  dispatcher: Dispatcher
  tally: SoakCounts
}

class SoakSession {
  readonly #id: string
  readonly #life: Life
  readonly #messages: ChatMessage[] = [{ role: 'system', content: 'You mend programs.' }]
  readonly #seen: SeenCall[] = []

  constructor(id: string, life: Life) {
    this.#id = id
    this.#life = life
  }

  async run(): Promise<void> {
    const { random, stop, thinkMs, tally: counts } = this.#life
    const calls = 1 + Math.floor(random() * MAX_CALLS)
    for (let number = 0; number < calls && !stop.aborted; number += 1) {
      if (!(await this.#call(number))) break
      await rest(thinkMs * (0.5 + random()), stop)
    }
    counts.sessions += 1
    await this.#finish()
  }

  /**
   * Retries until there is a response.
   * @returns whether there is one
   */
  async #call(number: number): Promise<boolean> {
    const { random } = this.#life
    this.#messages.push({ role: 'user', content: `${this.#id} call ${number}` })
    for (let retry = 0; retry < MAX_TRIES; retry += 1) {
      const ending = await this.#try(retry)
      if (ending.kind === 'answered') {
        this.#messages.push({ role: 'assistant', content: random() < 0.5 ? ending.text : ending.text.trim() })
        return true
      }
      if (ending.kind === 'left') return false
      await sleep(RETRY_MS * (0.5 + random()))
    }
    return false
  }

  async #try(retry: number): Promise<Ending> {
    const { world, random, dispatcher, tally: counts } = this.#life
    const call = {
      url: `${world.url}/${this.#id}/v1/chat/completions`,
      messages: this.#messages,
      stream: random() < 0.5,
      maxTokens: 1 + Math.floor(random() * MAX_TOKENS),
      retry,
      leaveAfterMs: random() < LEAVING_SHARE ? Math.floor(random() * MAX_STAY_MS) : undefined,
    }
    const sentAtMs = Date.now()
    const ending = await makeCall(call, dispatcher)
    const atMs = Date.now()
    const wasAway = world.wasAway(sentAtMs, atMs)
    this.#seen.push({
      marker: this.#messages.at(-1)!.content,
      ending,
      wasAway,
      weights: world.weightsBetween(sentAtMs, atMs),
    })
    counts.longestMs = Math.max(counts.longestMs, atMs - sentAtMs)
    if (ending.kind === 'answered') counts.times.push({ atMs, ms: atMs - sentAtMs, wasAway })
    counts.calls += 1
    counts.endings[ending.kind] += 1
    if (ending.kind === 'refused') counts.codes[ending.code] = (counts.codes[ending.code] ?? 0) + 1
    return ending
  }

  /** Reads the session as a trainer does. Some sessions are ended before, some deleted after, and some abandoned. */
  async #finish(): Promise<void> {
    const { random, tally: counts } = this.#life
    const isAbandoned = random() < ABANDONED_SHARE
    const reward = Math.round(random() * 100) / 100
    // If its only request was abandoned before the proxy read it, there may be no session yet.
    let isRewarded = false
    if (isAbandoned) counts.abandoned += 1
    else {
      isRewarded = (await this.#sendRequest('POST', '/reward', { reward })) !== undefined
      await this.#sendRequest('POST', '/complete', {})
    }
    const session = await this.#sendRequest('GET', '')
    const read = await this.#sendRequest('GET', '/trajectories')
    if (session === undefined || read === undefined) {
      if (this.#seen.some(({ ending }) => ending.kind === 'answered'))
        counts.faults.push(`${this.#id}: had answers, and cannot be read`)
      return
    }
    const { turns } = session as { turns: RecordedTurn[] }
    const { trajectories } = read as { trajectories: RecordedRow[] }
    counts.faults.push(...checkSession(turns, trajectories, this.#seen))
    if (isRewarded && (session as { reward: number }).reward !== reward)
      counts.faults.push(`${this.#id}: was given the reward ${reward}, and has another one`)
    if (!isAbandoned && random() < DELETED_SHARE) await this.#sendRequest('DELETE', '')
  }

  /**
   * Sends a trainer's request.
   * @returns undefined if the target does not exist
   * @throws Error if the proxy does not respond for a long time
   */
  async #sendRequest(method: 'GET' | 'POST' | 'DELETE', path: string, body?: object): Promise<unknown> {
    const { world, dispatcher } = this.#life
    const headers = { 'content-type': 'application/json' }
    let received = ''
    for (let tries = 0; tries < TRAINER_TRIES; tries += 1) {
      try {
        const response = await request(`${world.url}/sessions/${this.#id}${path}`, {
          method,
          ...(body && { headers, body: JSON.stringify(body) }),
          dispatcher,
        })
        const text = await response.body.text()
        if (response.statusCode === 200) return JSON.parse(text)
        if (response.statusCode === 404) return undefined
        received = text
      } catch (error) {
        received = String(error)
      }
      await sleep(RETRY_MS / 2)
    }
    throw new Error(`${method} ${this.#id}${path}: ${received}`)
  }
}

async function rest(ms: number, signal: AbortSignal): Promise<void> {
  await sleep(ms, undefined, { signal }).catch(() => {})
}

function asDisposable(value: Agent): AsyncDisposable & { value: Agent } {
  return { value, [Symbol.asyncDispose]: () => value.close() }
}
