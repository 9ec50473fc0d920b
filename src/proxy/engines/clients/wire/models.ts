import { ProxyError } from '../../../../base/errors.ts'
import { isRecord, parseJson } from '../../../../base/json.ts'
import type { EngineModel } from '../../port/engine-client.ts'
import type { EngineConnection } from './connection.ts'
import { convertHealthError, toExcerpt } from './failures.ts'

/**
 * Returns the models that the engine lists at `/v1/models`.
 * @throws ProxyError `engine_unreachable` or `engine_failed`
 */
export async function getModels(connection: EngineConnection, signal: AbortSignal): Promise<EngineModel[]> {
  const text = await connection.query('/v1/models', signal).catch((thrown) => {
    throw convertHealthError(thrown)
  })
  const body = parseJson(text)
  if (isRecord(body) && Array.isArray(body.data)) return body.data.filter(isRecord).flatMap(readModelInfo)
  const detail = toExcerpt(connection.endpoint.redact(text))
  throw new ProxyError('engine_failed', `the engine at ${connection.name} lists no models: ${detail}`)
}

function readModelInfo({ id, max_model_len: maxModelLen, parent }: Record<string, unknown>): EngineModel[] {
  if (typeof id !== 'string') return []
  return [
    {
      id,
      maxModelLen: typeof maxModelLen === 'number' ? maxModelLen : undefined,
      // vLLM and SGLang name the base model of an adapter.
      isAdapter: typeof parent === 'string' || undefined,
    },
  ]
}
