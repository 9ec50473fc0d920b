/**
 * Whether vLLM samples after the ids that it was sent. It does by its sources, so a share of the calls is compared: the
 * first ones' prompts, when a server is new or was away, and one of so many from then on; after a difference, all.
 * What is counted is compared with each call.
 */
import { ProxyError } from '../../../../base/errors.ts'
import type { GenerationStream } from '../../../../protocol/canonical/events.ts'
import type { TokenRequest } from '../wire/request.ts'

/** One prompt of so many is compared. */
const PROMPTS_A_CHECK = 32

export class PromptChecks {
  #calls = 0
  #isDoubted = false

  /** @returns whether the next call is to have its prompt repeated */
  next(): boolean {
    const isNext = this.#isDoubted || this.#calls % PROMPTS_A_CHECK === 0
    this.#calls += 1
    return isNext
  }

  /** It may be another server from now on. */
  restart(): void {
    this.#calls = 0
    this.#isDoubted = false
  }

  /**
   * @param engine its name
   * @throws ProxyError `engine_failed` at the end of an answer to a prompt of another length, whose ids nobody knows
   */
  async *watch(engine: string, request: TokenRequest, events: GenerationStream): GenerationStream {
    const { promptTokenIds: sent } = request
    let isTold = false
    for await (const batch of events) {
      for (const event of batch) {
        if (event.type === 'start' && event.promptTokenIds !== sent) {
          isTold = true
          this.#isDoubted ||= event.promptTokenIds?.equals(sent) !== true
        }
        if (event.type === 'end' && event.promptTokenIds !== undefined) {
          isTold = true
          this.#isDoubted = true
        }
        const counted = event.type === 'end' ? event.usage?.prompt_tokens : undefined
        if (isTold || counted === undefined || counted === sent.length) continue
        this.#isDoubted = true
        const message = `the engine at ${engine} sampled after ${counted} tokens, and was sent ${sent.length}`
        throw new ProxyError('engine_failed', message)
      }
      yield batch
    }
  }
}
