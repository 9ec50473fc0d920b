/** Agents of many rollouts at once: several calls, each of which goes on from the one before; some have sub-agents that call at the same time. */
import OpenAI from 'openai'

const AT_ONCE = 12
/** Sub-agents that each call of the main agent starts, in sessions' every third call. */
const SUBAGENTS = 2

export interface AgentsOptions {
  /** Where a call number so and so goes. */
  urls: readonly string[]
  /** How many rollouts there are. Absent: one after the other, until {@link Agents.stop}. */
  sessions?: number | undefined
  /** Of each main agent, one after the other. */
  calls: number
}

export class Agents {
  /** Turns whose answers were read, of each rollout. */
  readonly readTurns = new Map<string, string[]>()
  retries = 0
  finished = 0
  /** Resolves when all rollouts have come to their end. */
  readonly whenDone: Promise<void>
  readonly #options: AgentsOptions
  readonly #watchers = new Map<number, () => void>()
  #most: number
  #begun = 0
  #asked = 0
  #read = 0

  constructor(options: AgentsOptions) {
    this.#options = options
    this.#most = options.sessions ?? Number.POSITIVE_INFINITY
    this.whenDone = this.#run()
  }

  /** Resolves when main agents have read this share of their answers. */
  async untilRead(share: number): Promise<void> {
    const count = Math.ceil(this.#most * this.#options.calls * share)
    if (this.#read >= count) return
    const { promise, resolve } = Promise.withResolvers<void>()
    this.#watchers.set(count, resolve)
    await Promise.race([promise, this.whenDone])
  }

  /** No more rollouts begin. */
  stop(): void {
    this.#most = 0
  }

  async #run(): Promise<void> {
    const agent = async () => {
      while (this.#begun < this.#most) {
        const id = `rollout-${this.#begun}`
        this.#begun += 1
        this.readTurns.set(id, [])
        await this.#rollOut(id)
        this.finished += 1
      }
    }
    await Promise.all(Array.from({ length: AT_ONCE }, agent))
  }

  async #rollOut(sessionId: string): Promise<void> {
    const messages: OpenAI.ChatCompletionMessageParam[] = [{ role: 'user', content: `Begin ${sessionId}.` }]
    for (let call = 0; call < this.#options.calls; call += 1) {
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
    const { urls } = this.#options
    const openai = new OpenAI({
      baseURL: `http://balanced/${sessionId}/v1`,
      apiKey: 'none',
      maxRetries: 30,
      fetch: (input, init) => {
        const count = new Headers(init?.headers).get('x-stainless-retry-count') ?? '0'
        if (count !== '0') this.retries += 1
        this.#asked += 1
        const { pathname } = new URL(String(input))
        return fetch(urls[this.#asked % urls.length] + pathname, init)
      },
    })
    const wanted = { model: 'embedded', messages, max_tokens: 12 }
    const { id, choices } = await openai.chat.completions.create(wanted)
    this.readTurns.get(sessionId)!.push(id.replace('chatcmpl-', ''))
    return choices[0]!.message
  }
}
