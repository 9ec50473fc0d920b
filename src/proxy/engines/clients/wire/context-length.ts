import { ProxyError } from '../../../../base/errors.ts'
import type { ModelInfo } from '../../port/engine-client.ts'
import type { EngineConnection } from './connection.ts'
import { getModels } from './models.ts'
import type { TokenRequest } from './request.ts'

/** How many tokens the models of one engine hold, prompt and completion together. */
export class ContextLength {
  readonly #connection: EngineConnection
  #models: readonly ModelInfo[] | undefined

  constructor(connection: EngineConnection) {
    this.#connection = connection
  }

  /** A health check has asked the engine for its models. */
  note(models: readonly ModelInfo[]): void {
    this.#models = models
  }

  /**
   * Tokens that are left for the completion; at least 1, for the engine to refuse a prompt that is too long in its own
   * words. Asks the engine for its models if nobody has yet.
   * @throws ProxyError `unsupported` when the engine does not tell, and as `getModels`
   */
  async left({ body, promptTokenIds }: TokenRequest, signal: AbortSignal): Promise<number> {
    this.#models ??= await getModels(this.#connection, signal)
    const own = this.#models.find((model) => model.id === body.model)
    // An adapter has the length of its base model, and vLLM does not repeat it.
    const length = own?.maxModelLen ?? this.#models.find((model) => model.maxModelLen)?.maxModelLen
    if (length !== undefined) return Math.max(1, length - promptTokenIds.length)
    throw new ProxyError(
      'unsupported',
      `the engine at ${this.#connection.name} does not tell its context length: the call must set max_tokens`,
      { param: 'max_tokens' },
    )
  }
}
