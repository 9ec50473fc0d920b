import { ProxyError } from '../../../../base/errors.ts'
import type { EventSink } from '../../../../protocol/canonical/events.ts'
import type { GenerationRequest } from '../../../../protocol/canonical/request.ts'
import type { EngineClient, EngineHealth } from '../../port/engine-client.ts'
import type { ConnectionOptions } from '../wire/connection.ts'
import { getModels } from '../wire/models.ts'
import { isTokenRequest } from '../wire/request.ts'
import { ServerClient } from '../wire/server-client.ts'
import { OpenaiRoutes } from './routes.ts'

/**
 * Creates a client of any OpenAI-compatible server. The capabilities of the server beyond text are learned from its
 * responses.
 */
export function createOpenaiClient(options: ConnectionOptions): EngineClient {
  return new OpenaiClient(options)
}

class OpenaiClient extends ServerClient implements EngineClient {
  readonly kind = 'openai'
  /**
   * OpenAI's API has no field for the token ids of a chat. Some of these servers accept ids, but in different fields.
   */
  readonly takesTokenIds = false
  readonly #routes: OpenaiRoutes

  constructor(options: ConnectionOptions) {
    super(options)
    this.#routes = new OpenaiRoutes(this.connection)
  }

  get warning(): string | undefined {
    return this.#routes.warning
  }

  async generate(request: GenerationRequest, sink: EventSink, signal: AbortSignal): Promise<void> {
    if (isTokenRequest(request)) {
      const message = `the engine at ${this.name} does not accept token ids: token mode needs an engine of kind vllm, sglang or embedded`
      throw new ProxyError('unsupported', message)
    }
    await this.#routes.generate(request, sink, signal)
  }

  async checkHealth(signal: AbortSignal): Promise<EngineHealth> {
    return await this.#routes.runHealthCheck(async () => ({
      models: await getModels(this.connection, signal),
    }))
  }
}
