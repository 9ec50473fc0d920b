/**
 * The event loop's side of the thread or process that renders prompts. Templates are third-party programs: if one
 * exceeds its time or memory limit, only the request for which it was rendered fails, and the thread is replaced.
 */
import { startThread } from '../../../base/assets.ts'
import { ProxyError } from '../../../base/errors.ts'
import type { MessageOrJson, RenderOptions } from '../templates/chat-template.ts'
import type { PromptRoles } from '../templates/prompt-format.ts'
import { startConfinedProcess } from '../templates/python/confined-process.ts'
import { PythonThread, type PythonThreadLimits } from '../templates/python/python-thread.ts'
import type { Specialization, TextPath } from '../templates/specialization.ts'
import type { TemplateWords } from '../templates/template-words.ts'
import type { EncoderProcessConfig } from './encoder-process.ts'
import type { NewPartReply, NewPartRequest, PartSpecialization, PromptEngine } from './prompt-engine.ts'
import type { PromptJob, PromptReply, PromptThreadConfig } from './prompt-jobs.ts'
import type { Beginnings, PromptOptions } from './template-boundaries.ts'

/** The interface for rendering prompts. */
export type PromptService = Pick<PromptThread, 'getWords' | 'getBeginnings' | 'render' | 'renderNewPart'>

/** The time limit of a job; the longest real prompts take 0.1 s. */
const TIME_LIMIT_MS = 10_000

/**
 * The maximum number of messages of a short conversation. Longer ones take tens of milliseconds in Python, so short
 * ones precede them.
 */
const LONG_MESSAGES = 1_000

const ENTRY_POINT = new URL('./prompt-thread.ts', import.meta.url)
const CONFINED_ENTRY_POINT = new URL('./encoder-process.ts', import.meta.url)

/** A thread that renders a model's prompts, or a confined process for a model's own encoder. */
export class PromptThread {
  readonly #thread: PythonThread<PromptJob, PromptReply>

  constructor(data: PromptThreadConfig, limits: Partial<PythonThreadLimits> = {}) {
    const isModelCode = data.template.format === 'encoder'
    const source = isModelCode ? "the model's prompt encoder" : 'the chat template'
    this.#thread = new PythonThread({
      start: (workerData) =>
        isModelCode
          ? startConfinedProcess(CONFINED_ENTRY_POINT, workerData)
          : startThread(ENTRY_POINT, { workerData, name: 'prompts' }),
      name: 'prompts',
      data: isModelCode ? toJsonData(data) : data,
      limits: { timeLimitMs: TIME_LIMIT_MS, ...limits },
      task: 'renders prompts',
      createLimitError: (reason) => createRenderError(source, reason),
    })
  }

  /**
   * Starts the thread before its first job.
   * @throws ProxyError `config_invalid` if the template is not valid, `start_failed` if Python does not start
   */
  async launch(): Promise<void> {
    try {
      // A job completes only after the template has been compiled.
      await this.getBeginnings({})
    } catch (error) {
      // This job renders no request, so the template is at fault.
      if (!(error instanceof ProxyError) || error.code !== 'invalid_request') throw error
      throw new ProxyError('config_invalid', error.message, { cause: error })
    }
  }

  /** Returns the words that the template searches for in messages. */
  async getWords(): Promise<TemplateWords> {
    return (await this.#thread.execute({ kind: 'words' })) as TemplateWords
  }

  /** Returns the roles that the template renders. */
  async getRoles(): Promise<PromptRoles> {
    return (await this.#thread.execute({ kind: 'roles' })) as PromptRoles
  }

  /** See {@link PromptEngine.getBeginnings}. */
  async getBeginnings(options: PromptOptions): Promise<Beginnings> {
    return (await this.#thread.execute({
      kind: 'beginnings',
      options: serializeOptions(options),
    })) as Beginnings
  }

  /**
   * Renders a complete prompt.
   * @throws ProxyError `invalid_request` if the template rejects these messages, `unsupported` for content that is not
   *   text
   */
  async render(messages: readonly MessageOrJson[], options: RenderOptions): Promise<string> {
    const job = { kind: 'render', messages, options: serializeOptions(options) } as const
    return (await this.#thread.execute(job, messages.length > LONG_MESSAGES)) as string
  }

  /** See {@link PromptEngine.renderNewPart}. */
  async renderNewPart(request: NewPartRequest, options: PromptOptions): Promise<NewPartReply> {
    const job = { kind: 'newPart', request, options: serializeOptions(options) } as const
    const count = (request.history?.length ?? 0) + request.newMessages.length
    return (await this.#thread.execute(job, count > LONG_MESSAGES)) as NewPartReply
  }

  /** See {@link PromptEngine.specialize}. */
  async specialize(
    messages: readonly MessageOrJson[],
    options: RenderOptions,
    paths: readonly TextPath[],
  ): Promise<Specialization | undefined> {
    const job = { kind: 'specialize', messages, options: serializeOptions(options), paths } as const
    return (await this.#thread.execute(job)) as Specialization | undefined
  }

  /** See {@link PromptEngine.specializePart}. */
  async specializePart(
    request: NewPartRequest,
    options: PromptOptions,
  ): Promise<PartSpecialization | undefined> {
    const job = { kind: 'specializePart', request, options: serializeOptions(options) } as const
    return (await this.#thread.execute(job)) as PartSpecialization | undefined
  }

  close(): Promise<void> {
    return this.#thread.close()
  }
}

/** Serializes variables as JSON, because messages to a thread do not preserve a number's original notation. */
function serializeOptions<Options extends PromptOptions>(options: Options): Options {
  const { kwargs, documents } = options
  return {
    ...options,
    ...(typeof kwargs === 'object' && { kwargs: JSON.stringify(kwargs) }),
    ...(typeof documents === 'object' && documents !== null && { documents: JSON.stringify(documents) }),
  }
}

function toJsonData({ template, tokens }: PromptThreadConfig): EncoderProcessConfig {
  return { template, tokens: { ids: [...tokens.ids], eosIds: [...tokens.eosIds] } }
}

function createRenderError(source: string, reason: string): ProxyError {
  return new ProxyError('invalid_request', `${source} cannot be rendered: ${reason}`, { param: 'messages' })
}
