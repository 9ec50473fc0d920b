import { ProxyError } from '../../../../base/errors.ts'
import type { ModelInfo } from '../../port/engine-client.ts'
import type { EngineConnection } from './connection.ts'
import { getModels } from './models.ts'
import { maxTokensOf, type TokenRequest } from './request.ts'

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
   * The limit to send: the agent's, else what is left for the completion. A limit was made or cut to the length in the model's
   * files; an engine may serve less (vLLM's `--max-model-len`), and would refuse the call: it is cut to what health checks
   * have seen. At least 1, for the engine to refuse a prompt that is too long in its own words. Without a limit the engine
   * is asked for its models if nobody has asked yet.
   * @throws ProxyError `unsupported` when there is no limit and the engine does not tell, and as `getModels`
   */
  async budget({ body, promptTokenIds }: TokenRequest, signal: AbortSignal): Promise<number> {
    const limit = maxTokensOf(body)
    if (limit === undefined) this.#models ??= await getModels(this.#connection, signal)
    const own = this.#models?.find((model) => model.id === body.model)
    // An adapter has the length of its base model, and vLLM does not repeat it.
    const length = own?.maxModelLen ?? this.#models?.find((model) => model.maxModelLen)?.maxModelLen
    const left = length === undefined ? undefined : Math.max(1, length - promptTokenIds.length)
    if (left !== undefined) return Math.min(limit ?? left, left)
    if (limit !== undefined) return limit
    throw new ProxyError(
      'unsupported',
      `the engine at ${this.#connection.name} does not tell its context length: the call must set max_tokens`,
      { param: 'max_tokens' },
    )
  }
}
