/** The requests of the agents of rollouts-many.test.ts. */
import { encodeText } from '../helpers/plain-tokens.ts'

export type Behaviour = 'good' | 'crash' | 'hang' | 'zombie'

/** A type instead of an interface, because a sample may have any fields. */
export type PlanTask = {
  sample: number
  isProcess: boolean
  /** The agent's behaviour in each attempt. */
  plan: Behaviour[]
}

/** The engine never responds to a prompt that ends with this. */
export const HANG = 666

/** The maximum number of requests of a zombie, if they are not rejected. */
const MAX_ZOMBIE_REQUESTS = 200

/** A conversation whose every prompt begins with the sample and the attempt. */
export class Conversation {
  /** Ids of the completions that were read completely and not requested again. */
  readonly completionIds: number[] = []
  readonly #options: { baseUrl: string; apiKey: string }
  readonly #messages: { role: string; content: string }[]

  constructor(options: { baseUrl: string; apiKey: string; sample: number; tryNumber: number }) {
    this.#options = options
    this.#messages = [{ role: 'system', content: `${options.sample} ${options.tryNumber}` }]
  }

  /**
   * Sends the next turn. `double` sends it twice and continues from the second; `retry` acts as an SDK whose response
   * got lost.
   */
  async sendTurn(how: 'once' | 'double' | 'retry' = 'once'): Promise<void> {
    this.#messages.push({ role: 'user', content: '5' })
    let [response] = how === 'retry' ? [] : await this.#send()
    if (how === 'double' && response !== undefined) this.completionIds.push(response)
    if (how === 'retry') await this.#send()
    if (how !== 'once') [response] = await this.#send(how === 'retry' ? 1 : 0)
    if (response === undefined) throw new Error('no response')
    this.completionIds.push(response)
    this.#messages.push({ role: 'assistant', content: String(response) })
  }

  /** Sends a request that returns only if it fails. */
  async sendHangingRequest(): Promise<void> {
    this.#messages.push({ role: 'user', content: String(HANG) })
    await this.#send()
  }

  /** Sends requests until one is rejected. @returns its status, 0 if none was */
  async sendUntilRejected(): Promise<number> {
    for (let count = 0; count < MAX_ZOMBIE_REQUESTS; count += 1) {
      try {
        await this.sendTurn()
      } catch (error) {
        return Number((error as Error).message)
      }
    }
    return 0
  }

  async #send(retryCount = 0): Promise<number[]> {
    const { baseUrl, apiKey } = this.#options
    const response = await fetch(`${baseUrl}/chat/completions`, {
      method: 'POST',
      headers: { authorization: `Bearer ${apiKey}`, 'x-stainless-retry-count': String(retryCount) },
      body: JSON.stringify({ model: 'plain', messages: this.#messages }),
    })
    const reply = (await response.json()) as { choices?: { message: { content: string } }[] }
    const content = reply.choices?.[0]?.message.content
    if (content === undefined) throw new Error(String(response.status))
    return encodeText(content)
  }
}
