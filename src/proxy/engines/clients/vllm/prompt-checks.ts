/**
 * Verifies that vLLM samples after the ids that it was sent. Its sources say that it does, so only a share of the
 * prompts is compared: that of the first request to a new or restarted server, and then one in {@link PROMPTS_A_CHECK};
 * after a difference, all. The token counts are compared for each request.
 */
import { ProxyError } from '../../../../base/errors.ts'
import type { GenerationStream } from '../../../../protocol/canonical/events.ts'
import type { TokenRequest } from '../wire/request.ts'

/** One in this many prompts is compared. */
const PROMPTS_A_CHECK = 32

export class PromptChecks {
  #calls = 0
  #isDoubted = false

  /** Returns whether the next request should ask the server to repeat its prompt. */
  next(): boolean {
    const isNext = this.#isDoubted || this.#calls % PROMPTS_A_CHECK === 0
    this.#calls += 1
    return isNext
  }

  /** Restarts the checks: another server may replace this one. */
  restart(): void {
    this.#calls = 0
    this.#isDoubted = false
  }

  /**
   * Compares the prompt of a response.
   * @param engine the engine's name
   * @throws ProxyError `engine_failed` at the end of a response to a prompt of another length whose ids are unknown
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
