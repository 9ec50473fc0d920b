/**
 * Verifies that vLLM samples after the ids that it was sent. According to its source code it does, so only a share of
 * the prompts is compared: that of the first request to a new or restarted server, and then one in
 * {@link PROMPTS_PER_CHECK}; after a difference, all. The token counts are compared for each request.
 */
import { ProxyError } from '../../../../base/errors.ts'
import type { EventSink, GenerationEvent } from '../../../../protocol/canonical/events.ts'
import type { TokenRequest } from '../wire/request.ts'

/** One in this many prompts is compared. */
const PROMPTS_PER_CHECK = 32

/** The checks of one server. */
export class PromptChecks {
  #requests = 0
  #isSuspect = false

  /** Counts a request. Returns whether the server should be asked to repeat the request's prompt. */
  startRequest(): boolean {
    const isNext = this.#isSuspect || this.#requests % PROMPTS_PER_CHECK === 0
    this.#requests += 1
    return isNext
  }

  /** Restarts the checks, because another server may replace this one. */
  restart(): void {
    this.#requests = 0
    this.#isSuspect = false
  }

  /**
   * Returns a sink that compares the prompt of a response before it forwards the events to `sink`. At the end of a
   * response that does not repeat the prompt, the sink throws ProxyError `engine_failed` if the number of prompt tokens
   * differs.
   * @param engine the engine's name
   */
  watch(engine: string, request: TokenRequest, sink: EventSink): EventSink {
    const { promptTokenIds: sent } = request
    let isReported = false
    const check = (event: GenerationEvent) => {
      if (event.type === 'start' && event.promptTokenIds !== sent) {
        isReported = true
        this.#isSuspect ||= event.promptTokenIds?.equals(sent) !== true
      }
      if (event.type === 'end' && event.promptTokenIds !== undefined) {
        isReported = true
        this.#isSuspect = true
      }
      const counted = event.type === 'end' ? event.usage?.prompt_tokens : undefined
      if (isReported || counted === undefined || counted === sent.length) return
      this.#isSuspect = true
      const message = `the engine at ${engine} sampled after ${counted} tokens, and was sent ${sent.length}`
      throw new ProxyError('engine_failed', message)
    }
    return {
      write(batch) {
        for (const event of batch) check(event)
        return sink.write(batch)
      },
    }
  }
}
