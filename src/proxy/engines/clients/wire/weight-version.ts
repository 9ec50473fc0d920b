import { isRecord, parseJson } from '../../../../base/json.ts'

/** Converts a weight version in an engine's JSON: text or a number. */
export function readWeightVersion(value: unknown): string | undefined {
  return typeof value === 'string' || typeof value === 'number' ? String(value) : undefined
}

/** Returns the `weight_version` of a JSON object. @param text undefined: the engine did not respond */
export function findWeightVersion(text: string | undefined): string | undefined {
  const body = text === undefined ? undefined : parseJson(text)
  return isRecord(body) ? readWeightVersion(body.weight_version) : undefined
}

/**
 * Returns the version of the weights that sampled the first token. `weight_versions` in the newest engines are spans of
 * tokens; `weight_version` is the server's version when it wrote the response.
 * @param isComplete whether the response was not streamed: it was written after the last token, so its `weight_version`
 *   may not apply to the first
 */
export function findFirstWeightVersion(
  holder: Record<string, unknown>,
  isComplete: boolean,
): string | undefined {
  return (
    findVersionAt(holder.weight_versions, 0) ??
    (isComplete ? undefined : readWeightVersion(holder.weight_version))
  )
}

/** Returns the version of the weights that sampled the last token; undefined unless `weight_versions` reports it. */
export function findLastWeightVersion(holder: Record<string, unknown>): string | undefined {
  return findVersionAt(holder.weight_versions, -1)
}

function findVersionAt(spans: unknown, index: number): string | undefined {
  const span: unknown = Array.isArray(spans) ? spans.at(index) : undefined
  return isRecord(span) ? readWeightVersion(span.version) : undefined
}
