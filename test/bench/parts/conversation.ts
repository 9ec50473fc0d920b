import type { LoadJob } from './load-job.ts'
import { generateProse } from './text.ts'

/** The length of one message of the history. */
const MESSAGE_BYTES = 2_000

/** One agent's conversation, as bytes, because the agent should cost as little as possible. */
export class Conversation {
  readonly #job: LoadJob
  /** Messages as JSON, each with the comma before it. */
  readonly #messages: Buffer[]
  readonly #options: Buffer

  constructor(job: LoadJob) {
    const { stream, maxTokens } = job
    const options = JSON.stringify({ model: 'stand-in', stream, max_tokens: maxTokens, temperature: 1 })
    this.#job = job
    this.#messages = [createHistory(job)]
    this.#options = Buffer.from(`],${options.slice(1)}`)
  }

  /**
   * Builds the next request.
   * @param marker makes this request differ from every other one
   * @returns its body
   */
  nextRequest(marker: string): Buffer {
    const text = generateProse(this.#job.growthBytes, 0)
    const question = serializeMessage('user', `${marker} ${text}`)
    if (this.#job.growthBytes === 0) return Buffer.concat([...this.#messages, question, this.#options])
    this.#messages.push(question)
    return Buffer.concat([...this.#messages, this.#options])
  }

  /**
   * Appends a completion if the conversation grows.
   * @param response the body of a complete response
   */
  addCompletion(response: Buffer): void {
    if (this.#job.growthBytes === 0) return
    this.#messages.push(
      serializeMessage('assistant', JSON.parse(response.toString()).choices[0].message.content),
    )
  }
}

function serializeMessage(role: string, content: string): Buffer {
  return Buffer.from(`,${JSON.stringify({ role, content })}`)
}

const historyCache = new Map<number, Buffer>()

function createHistory({ bodyBytes }: LoadJob): Buffer {
  const existing = historyCache.get(bodyBytes)
  if (existing) return existing
  const messages = [{ role: 'system', content: 'You mend programs.' }]
  for (let bytes = MESSAGE_BYTES, seed = 1; bytes < bodyBytes; bytes += MESSAGE_BYTES, seed += 1) {
    messages.push({
      role: seed % 2 === 1 ? 'user' : 'assistant',
      content: generateProse(MESSAGE_BYTES, seed),
    })
  }
  const history = Buffer.from(`{"messages":${JSON.stringify(messages).slice(0, -1)}`)
  historyCache.set(bodyBytes, history)
  return history
}
