/**
 * Agents of many concurrent rollouts: several requests, each of which continues the previous one; some have sub-agents
 * that send requests concurrently.
 */
import OpenAI from 'openai'

const CONCURRENCY = 12
/** Sub-agents that each request of the main agent starts, in every third request of a session. */
const SUBAGENTS = 2

interface AgentsOptions {
  /** The URL for each request by number. */
  urls: readonly string[]
  /** The number of rollouts. Absent: new ones start until {@link Agents.stop}. */
  sessions?: number | undefined
  /** Sequential requests of each main agent. */
  requests: number
}

export class Agents {
  /** The ids of turns whose responses were read, by rollout. */
  readonly readTurns = new Map<string, string[]>()
  retries = 0
  finished = 0
  /** Resolves when all rollouts have ended. */
  readonly whenDone: Promise<void>
  readonly #options: AgentsOptions
  readonly #watchers = new Map<number, () => void>()
  #limit: number
  #started = 0
  #requestCount = 0
  #read = 0

  constructor(options: AgentsOptions) {
    this.#options = options
    this.#limit = options.sessions ?? Number.POSITIVE_INFINITY
    this.whenDone = this.#run()
  }

  /** Resolves when main agents have read this share of their responses. */
  async untilRead(share: number): Promise<void> {
    const count = Math.ceil(this.#limit * this.#options.requests * share)
    if (this.#read >= count) return
    const { promise, resolve } = Promise.withResolvers<void>()
    this.#watchers.set(count, resolve)
    await Promise.race([promise, this.whenDone])
  }

  /** Prevents further rollouts from starting. */
  stop(): void {
    this.#limit = 0
  }

  async #run(): Promise<void> {
    const agent = async () => {
      while (this.#started < this.#limit) {
        const id = `rollout-${this.#started}`
        this.#started += 1
        this.readTurns.set(id, [])
        await this.#rollOut(id)
        this.finished += 1
      }
    }
    await Promise.all(Array.from({ length: CONCURRENCY }, agent))
  }

  async #rollOut(sessionId: string): Promise<void> {
    const messages: OpenAI.ChatCompletionMessageParam[] = [{ role: 'user', content: `Begin ${sessionId}.` }]
    for (let step = 0; step < this.#options.requests; step += 1) {
      const subagents = Array.from({ length: step % 3 === 1 ? SUBAGENTS : 0 }, (_, index) =>
        this.#sendRequest(sessionId, [{ role: 'user', content: `Help number ${index} with step ${step}.` }]),
      )
      const [assistantMessage] = await Promise.all([this.#sendRequest(sessionId, messages), ...subagents])
      messages.push(assistantMessage, { role: 'user', content: 'Go on.' })
      this.#read += 1
      this.#watchers.get(this.#read)?.()
    }
  }

  async #sendRequest(sessionId: string, messages: OpenAI.ChatCompletionMessageParam[]) {
    const { urls } = this.#options
    const openai = new OpenAI({
      baseURL: `http://balanced/${sessionId}/v1`,
      apiKey: 'none',
      maxRetries: 30,
      fetch: (input, init) => {
        const count = new Headers(init?.headers).get('x-stainless-retry-count') ?? '0'
        if (count !== '0') this.retries += 1
        this.#requestCount += 1
        const { pathname } = new URL(String(input))
        return fetch(urls[this.#requestCount % urls.length] + pathname, init)
      },
    })
    const params = { model: 'embedded', messages, max_tokens: 12 }
    const { id, choices } = await openai.chat.completions.create(params)
    this.readTurns.get(sessionId)!.push(id.replace('chatcmpl-', ''))
    return choices[0]!.message
  }
}
