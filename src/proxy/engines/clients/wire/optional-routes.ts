import { ProxyError } from '../../../../base/errors.ts'
import type { EngineConnection } from './connection.ts'
import { healthFailure } from './failures.ts'

/** Routes that only some versions of an engine have. One that was found missing is not asked for again. */
export class OptionalRoutes {
  readonly #connection: EngineConnection
  readonly #missing = new Set<string>()

  constructor(connection: EngineConnection) {
    this.#connection = connection
  }

  /**
   * The body of a GET.
   * @returns undefined when the server has no such route, as some versions and gateways do not, or does not let us
   * @throws ProxyError `engine_unreachable` or `engine_failed`
   */
  async get(path: string, signal: AbortSignal): Promise<string | undefined> {
    if (this.#missing.has(path)) return undefined
    try {
      return await this.#connection.ask(path, signal)
    } catch (thrown) {
      if (!(thrown instanceof ProxyError && thrown.code === 'engine_rejected')) throw healthFailure(thrown)
      if (thrown.status === 404 || thrown.status === 405) this.#missing.add(path)
      return undefined
    }
  }
}
