/** What the agents of rollouts-many.test.ts do on the wire. */
import { idsOf } from '../helpers/plain-tokens.ts'

export type Behaviour = 'good' | 'crash' | 'hang' | 'zombie'

/** A type and no interface, for a sample may have any fields. */
export type TalkTask = {
  sample: number
  isProcess: boolean
  /** What the agent does in each try. */
  plan: Behaviour[]
}

/** The engine never answers a prompt that ends in this. */
export const HANG = 666

/** So many calls of a zombie at most, should nobody refuse them. */
const HAUNTING_CALLS = 200

export interface TalkOptions {
  baseUrl: string
  apiKey: string
  sample: number
  tryNumber: number
}

/** A conversation whose every prompt begins with the sample and the try. */
export class Talk {
  /** Ids of the completions that were read to their end and not asked for again. */
  readonly answers: number[] = []
  readonly #options: TalkOptions
  readonly #messages: { role: string; content: string }[]

  constructor(options: TalkOptions) {
    this.#options = options
    this.#messages = [{ role: 'system', content: `${options.sample} ${options.tryNumber}` }]
  }

  /** The next turn. `double` sends it twice and goes on from the second; `retry` as an SDK whose answer got lost. */
  async say(how: 'once' | 'double' | 'retry' = 'once'): Promise<void> {
    this.#messages.push({ role: 'user', content: '5' })
    let [answer] = how === 'retry' ? [] : await this.#call()
    if (how === 'double' && answer !== undefined) this.answers.push(answer)
    if (how === 'retry') await this.#call()
    if (how !== 'once') [answer] = await this.#call(how === 'retry' ? 1 : 0)
    if (answer === undefined) throw new Error('no answer')
    this.answers.push(answer)
    this.#messages.push({ role: 'assistant', content: String(answer) })
  }

  /** Never comes back, unless the call fails. */
  async hang(): Promise<void> {
    this.#messages.push({ role: 'user', content: String(HANG) })
    await this.#call()
  }

  /** Goes on calling until it is refused. @returns the status of that, 0 if it never was */
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
    const answer = (await response.json()) as { choices?: { message: { content: string } }[] }
    const content = answer.choices?.[0]?.message.content
    if (content === undefined) throw new Error(String(response.status))
    return idsOf(content)
  }
}
