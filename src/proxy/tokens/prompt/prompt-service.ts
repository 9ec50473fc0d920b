/**
 * The thread that prompts are rendered on, seen from the event loop. Templates are other people's programs: one that
 * takes too long or too much memory fails the call that it was rendered for, and its thread is replaced.
 */
import { ProxyError } from '../../../base/errors.ts'
import type { MessageOrJson, RenderOptions } from '../templates/chat-template.ts'
import { PythonThread, type PythonThreadLimits } from '../templates/python/python-thread.ts'
import type { TemplateWords } from '../templates/template-words.ts'
import type { Beginnings, NewPartAnswer, NewPartRequest, PromptOptions } from './prompt-engine.ts'
import type { PromptAnswer, PromptJob, PromptThreadData } from './prompt-thread.ts'

/** What renders prompts, wherever it does it. */
export type PromptService = Pick<PromptThread, 'words' | 'beginnings' | 'render' | 'newPart'>

/** The longest of real prompts take a tenth of a second. */
const TIME_LIMIT_MS = 10_000

/** What has more takes Python tens of milliseconds. */
const LONG_MESSAGES = 1_000

const ENTRY_POINT = new URL('./prompt-thread.ts', import.meta.url)

export class PromptThread {
  readonly #thread: PythonThread<PromptJob, PromptAnswer>

  constructor(data: PromptThreadData, limits: Partial<PythonThreadLimits> = {}) {
    this.#thread = new PythonThread({
      entryPoint: ENTRY_POINT,
      name: 'prompts',
      data,
      limits: { timeLimitMs: TIME_LIMIT_MS, ...limits },
      task: 'renders chat templates',
      refusal,
    })
  }

  /**
   * Starts the thread at once, and not with its first job.
   * @throws ProxyError `config_invalid` if the template is not valid, `start_failed` if Python does not start
   */
  async begin(): Promise<void> {
    try {
      // A job is answered when the thread is ready for it.
      await this.beginnings({})
    } catch (error) {
      // Nobody has called yet: what is wrong is the template.
      if (!(error instanceof ProxyError) || error.code !== 'invalid_request') throw error
      throw new ProxyError('config_invalid', error.message, { cause: error })
    }
  }

  /** What the template looks for in what messages say. */
  async words(): Promise<TemplateWords> {
    return (await this.#thread.ask({ kind: 'words' })) as TemplateWords
  }

  async beginnings(options: PromptOptions): Promise<Beginnings> {
    return (await this.#thread.ask({ kind: 'beginnings', options: asText(options) })) as Beginnings
  }

  /** @throws ProxyError `invalid_request` if the template refuses these messages, `unsupported` for what is no text */
  async render(messages: readonly MessageOrJson[], options: RenderOptions): Promise<string> {
    const job = { kind: 'render', messages, options: asText(options) } as const
    return (await this.#thread.ask(job, messages.length > LONG_MESSAGES)) as string
  }

  async newPart(request: NewPartRequest, options: PromptOptions): Promise<NewPartAnswer> {
    const job = { kind: 'newPart', request, options: asText(options) } as const
    const count = (request.history?.length ?? 0) + request.newMessages.length
    return (await this.#thread.ask(job, count > LONG_MESSAGES)) as NewPartAnswer
  }

  close(): Promise<void> {
    return this.#thread.close()
  }
}

/** Variables as JSON: a number as it was written is lost on the way to another thread. */
function asText<Options extends PromptOptions>(options: Options): Options {
  const { kwargs, documents } = options
  return {
    ...options,
    ...(typeof kwargs === 'object' && { kwargs: JSON.stringify(kwargs) }),
    ...(typeof documents === 'object' && documents !== null && { documents: JSON.stringify(documents) }),
  }
}

function refusal(why: string): ProxyError {
  return new ProxyError('invalid_request', `the chat template cannot be rendered: ${why}`, {
    param: 'messages',
  })
}
