/** Short requests that are timed while others send requests with very many messages. */
import { setTimeout as sleep } from 'node:timers/promises'

export interface HeapJob {
  /** The URL of the proxy. */
  url: string
  /** The number of messages of each request. */
  messages: number
  requests: number
  /** Fields of requests besides their messages. */
  fields: object
}

const EVERY_MS = 20

/** Sends sequential requests, each in a new session, until the end. */
export class ShortRequests {
  readonly #running: Promise<void>
  #tookMs: number[] = []
  #isOver = false

  constructor({ url, fields }: { url: string; fields: object }) {
    this.#running = this.#run(url, fields)
  }

  /** Returns the durations of the requests that ended since the previous query. */
  takeDurations(): number[] {
    return this.#tookMs.splice(0)
  }

  stop(): Promise<void> {
    this.#isOver = true
    return this.#running
  }

  async #run(url: string, fields: object): Promise<void> {
    for (let index = 0; !this.#isOver; index += 1) {
      const startedAt = performance.now()
      const { status, text } = await post(`${url}/short-${index}`, fields, 1, 'hi')
      if (status !== 200) throw new Error(`a short request got status ${status}: ${text}`)
      this.#tookMs.push(performance.now() - startedAt)
      await sleep(EVERY_MS)
    }
  }
}

/** Sends a request with `count` new messages. */
export async function post(
  session: string,
  fields: object,
  count: number,
  text: string,
): Promise<{ status: number; text: string }> {
  const messages = Array.from({ length: count }, (_, index) => ({
    role: index % 2 === 0 ? 'user' : 'assistant',
    content: `${text}, message ${index}`,
  }))
  const body = JSON.stringify({ model: 'm', ...fields, messages })
  const headers = { 'content-type': 'application/json' }
  const response = await fetch(`${session}/v1/chat/completions`, { method: 'POST', body, headers })
  return { status: response.status, text: await response.text() }
}
