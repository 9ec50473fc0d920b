import { ProxyError } from '../../../base/errors.ts'
import { isRecord, parseJson } from '../../../base/json.ts'
import type { EventSink } from '../../../protocol/canonical/events.ts'
import type { ChatBody, GenerationRequest } from '../../../protocol/canonical/request.ts'
import { createCannotCountError } from '../port/count-tokens.ts'
import type { EngineClient, EngineHealth, EngineKind } from '../port/engine-client.ts'
import type { TokenizerQuery } from '../port/expected-tokenizer.ts'
import type { ScoreRequest, ScoreResult } from '../port/score.ts'
import { CLIENT_OF_KIND } from './client-of-kind.ts'
import { parseEndpoint } from './endpoint.ts'
import { type ConnectionOptions, EngineConnection } from './wire/connection.ts'
import { convertHealthError, isLastingRejection } from './wire/failures.ts'

/** Creates a client that detects the kind of its server when the server first responds. */
export function createAutoClient(options: ConnectionOptions): EngineClient {
  return new AutoClient(options)
}

class AutoClient implements EngineClient {
  readonly name: string
  readonly #options: ConnectionOptions
  #client: EngineClient | undefined

  constructor(options: ConnectionOptions) {
    this.#options = options
    this.name = parseEndpoint(options.url, options.apiKey).name
  }

  /** The detected kind; until then `openai`, the common denominator. */
  get kind(): EngineKind {
    return this.#client?.kind ?? 'openai'
  }

  /**
   * True until the kind is detected: a server that is not up yet may accept token ids, and each request detects the
   * kind before it is sent.
   */
  get takesTokenIds(): boolean {
    return this.#client?.takesTokenIds ?? true
  }

  get takesImages(): boolean {
    return this.#client === undefined || this.#client.takesImages === true
  }

  get warning(): string | undefined {
    return this.#client?.warning
  }

  async generate(request: GenerationRequest, sink: EventSink, signal: AbortSignal): Promise<void> {
    const client = this.#client ?? (await this.#detect(signal))
    await client.generate(request, sink, signal)
  }

  async countTokens(body: ChatBody, signal: AbortSignal): Promise<number> {
    const client = await this.#detect(signal)
    if (!client.countTokens)
      throw createCannotCountError(`the engine at ${this.name} cannot count the tokens of a chat`)
    return await client.countTokens(body, signal)
  }

  async score(request: ScoreRequest, signal: AbortSignal): Promise<ScoreResult> {
    const client = await this.#detect(signal)
    if (client.score) return await client.score(request, signal)
    throw new ProxyError(
      'unsupported',
      `the engine at ${this.name} cannot score tokens: it must be vLLM or SGLang`,
    )
  }

  async getTokenTexts(model: string, ids: Int32Array, signal: AbortSignal): Promise<string[] | undefined> {
    return (await this.#detect(signal)).getTokenTexts?.(model, ids, signal)
  }

  async checkHealth(signal: AbortSignal, question?: TokenizerQuery): Promise<EngineHealth> {
    const client = await this.#detect(signal)
    return client.checkHealth(signal, question)
  }

  endSession(sessionId: string): void {
    this.#client?.endSession?.(sessionId)
  }

  async close(): Promise<void> {
    await this.#client?.close()
  }

  async #detect(signal: AbortSignal): Promise<EngineClient> {
    if (this.#client) return this.#client
    const kind = await detectEngineKind(this.#options, signal)
    // Two requests may have detected concurrently; the first result wins.
    this.#client ??= CLIENT_OF_KIND[kind](this.#options)
    return this.#client
  }
}

/** SGLang's routes for model information, the newer name first. */
const MODEL_INFO = ['/model_info', '/get_model_info']

/**
 * The prefix of vLLM's metrics; `/metrics` needs no key. A version alone does not identify vLLM: other servers report
 * one too, for instance TensorRT-LLM (`tensorrt_llm/serve/openai_server.py`), and support none of vLLM's fields.
 */
const VLLM_METRIC = /^vllm:/m

/**
 * Detects the kind of an engine: vLLM and SGLang name themselves as owners of their models, or have routes that no
 * other server has in this form; any other server that lists models counts as OpenAI-compatible.
 * @throws ProxyError `engine_unreachable` if no server responds, or if it closes a connection, `engine_failed` if the
 *   server lists no models, or is overloaded
 */
export async function detectEngineKind(
  { url, apiKey, connect }: Pick<ConnectionOptions, 'url' | 'apiKey' | 'connect'>,
  signal: AbortSignal,
): Promise<Exclude<EngineKind, 'embedded'>> {
  const connection = new EngineConnection({ url, apiKey, connect })
  try {
    const models = await fetchJson(connection, '/v1/models', signal)
    const owners = getModelOwners(models)
    for (const kind of ['vllm', 'sglang'] as const) if (owners.includes(kind)) return kind
    for (const path of MODEL_INFO) {
      const info = await fetchJson(connection, path, signal)
      if (isRecord(info) && typeof info.is_generation === 'boolean') return 'sglang'
    }
    const version = await fetchJson(connection, '/version', signal)
    const hasVersion = isRecord(version) && typeof version.version === 'string'
    if (hasVersion && VLLM_METRIC.test((await fetchText(connection, '/metrics', signal)) ?? '')) return 'vllm'
    if (models !== undefined) return 'openai'
    throw new ProxyError(
      'engine_failed',
      `the server at ${connection.name} lists no models under /v1/models; check the URL and the key, or set the engine's kind`,
    )
  } finally {
    await connection.close()
  }
}

/** Fetches JSON. @returns undefined for an error response, or one that is not JSON */
async function fetchJson(connection: EngineConnection, path: string, signal: AbortSignal): Promise<unknown> {
  return parseJson((await fetchText(connection, path, signal)) ?? '')
}

/**
 * Fetches text.
 * @returns undefined for an error response, such as one to an unknown route, for which some servers have 5xx
 * @throws ProxyError for a failure that is transient: the kind is detected once, so that it must not depend on one
 */
async function fetchText(
  connection: EngineConnection,
  path: string,
  signal: AbortSignal,
): Promise<string | undefined> {
  try {
    return await connection.query(path, signal)
  } catch (thrown) {
    const isResponse =
      isLastingRejection(thrown) || (thrown instanceof ProxyError && thrown.code === 'engine_failed')
    if (isResponse) return undefined
    throw convertHealthError(thrown)
  }
}

function getModelOwners(models: unknown): unknown[] {
  if (!isRecord(models) || !Array.isArray(models.data)) return []
  return models.data.filter(isRecord).map((model) => model.owned_by)
}
