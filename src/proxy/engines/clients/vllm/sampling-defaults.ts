import { isRecord, parseJson } from '../../../../base/json.ts'
import type { EngineConnection } from '../wire/connection.ts'
import { isLastingRejection } from '../wire/failures.ts'
import { isRouteMissing, isSet } from './ids-route.ts'

/** The route that returns the sampling parameters of a request, completed with the server's defaults. */
const RENDER_ROUTE = '/v1/completions/render'

/**
 * Sampling parameters for which the engine has defaults, from the model's `generation_config.json` or from its flags.
 */
const DEFAULTED = [
  'temperature',
  'top_p',
  'top_k',
  'min_p',
  'repetition_penalty',
  'presence_penalty',
  'frequency_penalty',
  'stop_token_ids',
]

/**
 * The defaults that `/v1/completions` and chat use for missing sampling parameters. The ids route uses only those of
 * `SamplingParams`, so that a request on it must contain them. They are the same for all models of a server: adapters
 * have those of their base model.
 */
export class SamplingDefaults {
  readonly #connection: Pick<EngineConnection, 'query'>
  #known: Record<string, unknown> | undefined
  /** A model that the server lists. */
  #model: string | undefined

  constructor(connection: Pick<EngineConnection, 'query'>) {
    this.#connection = connection
  }

  /** Stores the model to name in queries, for routers that require one. Without it, vLLM uses its own. */
  setModel(model: string | undefined): void {
    this.#model = model
  }

  /** Discards the defaults, because another server may replace this one. */
  forget(): void {
    this.#known = undefined
  }

  /**
   * Returns the defaults; empty if the server does not report them. They are queried without the model that an agent
   * names: vLLM responds with 404 to an unknown model, as it does without the route.
   * @throws ProxyError for a failure that may be transient: a request without the defaults would be sampled from
   *   another distribution
   */
  async get(signal: AbortSignal): Promise<Record<string, unknown>> {
    if (this.#known !== undefined) return this.#known
    const json = JSON.stringify({ model: this.#model, prompt: '.', max_tokens: 1 })
    try {
      this.#known = readDefaults(parseJson(await this.#connection.query(RENDER_ROUTE, signal, json)))
    } catch (thrown) {
      if (!isLastingRejection(thrown)) throw thrown
      if (isRouteMissing(thrown)) this.#known = {}
    }
    return this.#known ?? {}
  }
}

/** Returns the defaults in a response of {@link RENDER_ROUTE}; undefined if it contains no sampling parameters. */
function readDefaults(rendered: unknown): Record<string, unknown> | undefined {
  const first: unknown = Array.isArray(rendered) ? rendered[0] : rendered
  if (!isRecord(first) || !isRecord(first.sampling_params)) return undefined
  const params = first.sampling_params
  return Object.fromEntries(DEFAULTED.flatMap((name) => (isSet(params[name]) ? [[name, params[name]]] : [])))
}
