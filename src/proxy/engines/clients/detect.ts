import { ProxyError } from '../../../base/errors.ts'
import type { EngineKind } from '../port/engine-client.ts'
import { type ConnectionOptions, EngineConnection } from './wire/connection.ts'
import { isRecord, parseJson } from './wire/failures.ts'

/** SGLang's answer to what it serves: the newer name of the route first. */
const MODEL_INFO = ['/model_info', '/get_model_info']

/**
 * Finds out which client serves an engine: vLLM and SGLang say so as the owners of their models, or answer a route that
 * other servers do not have; whatever else lists models is taken for an OpenAI-compatible server.
 * @throws ProxyError `engine_unreachable` when nothing answers, `engine_failed` when what answers is no such server
 */
export async function detectEngineKind(
  { url, apiKey, connect }: Pick<ConnectionOptions, 'url' | 'apiKey' | 'connect'>,
  signal: AbortSignal,
): Promise<Exclude<EngineKind, 'embedded'>> {
  const connection = new EngineConnection({
    url,
    ...(apiKey !== undefined && { apiKey }),
    ...(connect && { connect }),
  })
  try {
    const models = await askJson(connection, '/v1/models', signal)
    const owners = ownersOf(models)
    for (const kind of ['vllm', 'sglang'] as const) if (owners.includes(kind)) return kind
    for (const path of MODEL_INFO) {
      const info = await askJson(connection, path, signal)
      if (isRecord(info) && typeof info.is_generation === 'boolean') return 'sglang'
    }
    const version = await askJson(connection, '/version', signal)
    if (isRecord(version) && typeof version.version === 'string') return 'vllm'
    if (models !== undefined) return 'openai'
    throw new ProxyError(
      'engine_failed',
      `what answers at ${connection.name} lists no models under /v1/models; check the URL and the key, or name the engine's kind`,
    )
  } finally {
    await connection.close()
  }
}

/** @returns undefined when the answer is a refusal or no JSON */
async function askJson(connection: EngineConnection, path: string, signal: AbortSignal): Promise<unknown> {
  try {
    return parseJson(await connection.getText(path, signal))
  } catch (thrown) {
    if (thrown instanceof ProxyError && thrown.code !== 'engine_unreachable') return undefined
    throw thrown
  }
}

function ownersOf(models: unknown): unknown[] {
  if (!isRecord(models) || !Array.isArray(models.data)) return []
  return models.data.filter(isRecord).map((model) => model.owned_by)
}
