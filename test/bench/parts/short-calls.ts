/** Short calls that are timed while others call with a heap of messages. */
import { setTimeout as sleep } from 'node:timers/promises'

export interface HeapJob {
  /** Of the proxy. */
  url: string
  /** Of each call. */
  messages: number
  calls: number
}

const EVERY_MS = 20

/** Of sessions of their own, one after the other, until the end. */
export class ShortCalls {
  readonly #calling: Promise<void>
  #tookMs: number[] = []
  #isOver = false

  constructor(url: string) {
    this.#calling = this.#call(url)
  }

  /** How long each took of those that ended since this was asked. */
  taken(): number[] {
    return this.#tookMs.splice(0)
  }

  end(): Promise<void> {
    this.#isOver = true
    return this.#calling
  }

  async #call(url: string): Promise<void> {
    for (let call = 0; !this.#isOver; call += 1) {
      const startedAt = performance.now()
      const status = await post(`${url}/short-${call}`, 1, 'hi')
      if (status !== 200) throw new Error(`a short call was answered with ${status}`)
      this.#tookMs.push(performance.now() - startedAt)
      await sleep(EVERY_MS)
    }
  }
}

/** A call with so many new messages. @returns the answer's status */
export async function post(session: string, count: number, text: string): Promise<number> {
  const messages = Array.from({ length: count }, (_, place) => ({
    role: place % 2 === 0 ? 'user' : 'assistant',
    content: `${text}, message ${place}`,
  }))
  const body = JSON.stringify({ model: 'm', messages })
  const headers = { 'content-type': 'application/json' }
  const response = await fetch(`${session}/v1/chat/completions`, { method: 'POST', body, headers })
  await response.text()
  return response.status
}
