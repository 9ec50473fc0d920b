/** The requests of the agents of rollouts-many.test.ts. */
import { encodeText } from '../helpers/plain-tokens.ts'

export type Behaviour = 'good' | 'crash' | 'hang' | 'zombie'

/** A type instead of an interface, because a sample may have any fields. */
export type TalkTask = {
  sample: number
  isProcess: boolean
  /** The agent's behaviour in each attempt. */
  plan: Behaviour[]
}

/** The engine never responds to a prompt that ends with this. */
export const HANG = 666

/** The maximum number of requests of a zombie, if they are not rejected. */
const HAUNTING_CALLS = 200

export interface TalkOptions {
  baseUrl: string
  apiKey: string
  sample: number
  tryNumber: number
}

/** A conversation whose every prompt begins with the sample and the attempt. */
export class Talk {
  /** Ids of the completions that were read completely and not requested again. */
  readonly answers: number[] = []
  readonly #options: TalkOptions
  readonly #messages: { role: string; content: string }[]

  constructor(options: TalkOptions) {
    this.#options = options
    this.#messages = [{ role: 'system', content: `${options.sample} ${options.tryNumber}` }]
  }

  /**
   * Sends the next turn. `double` sends it twice and continues from the second; `retry` acts as an SDK whose response
   * got lost.
   */
  async say(how: 'once' | 'double' | 'retry' = 'once'): Promise<void> {
    this.#messages.push({ role: 'user', content: '5' })
    let [response] = how === 'retry' ? [] : await this.#call()
    if (how === 'double' && response !== undefined) this.answers.push(response)
    if (how === 'retry') await this.#call()
    if (how !== 'once') [response] = await this.#call(how === 'retry' ? 1 : 0)
    if (response === undefined) throw new Error('no response')
    this.answers.push(response)
    this.#messages.push({ role: 'assistant', content: String(response) })
  }

  /** Sends a request that returns only if it fails. */
  async hang(): Promise<void> {
    this.#messages.push({ role: 'user', content: String(HANG) })
    await this.#call()
  }

  /** Sends requests until one is rejected. @returns its status, 0 if none was */
  async haunt(): Promise<number> {
    for (let calls = 0; calls < HAUNTING_CALLS; calls += 1) {
      try {
        await this.say()
      } catch (error) {
        return Number((error as Error).message)
      }
    }
    return 0
  }

  async #call(retryCount = 0): Promise<number[]> {
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
