import { isRecord, parseJson } from '../../../../base/json.ts'

/** A weight version as it stands in an engine's JSON: text or a number. */
export function weightVersionOf(value: unknown): string | undefined {
  return typeof value === 'string' || typeof value === 'number' ? String(value) : undefined
}

/** The `weight_version` of a JSON object. @param text undefined: the engine did not answer */
export function weightVersionIn(text: string | undefined): string | undefined {
  const said = text === undefined ? undefined : parseJson(text)
  return isRecord(said) ? weightVersionOf(said.weight_version) : undefined
}

/**
 * Which weights sampled the first token, by what an engine says beside an answer: `weight_versions` are spans of tokens,
 * in newest versions; `weight_version` is the server's when it wrote this.
 * @param isWhole the answer has come at once: what the server says when it is over is no word about its beginning
 */
export function firstWeightVersion(said: Record<string, unknown>, isWhole: boolean): string | undefined {
  return versionAt(said.weight_versions, 0) ?? (isWhole ? undefined : weightVersionOf(said.weight_version))
}

/** Which weights sampled the last token, by the same spans. */
export function lastWeightVersion(said: Record<string, unknown>): string | undefined {
  return versionAt(said.weight_versions, -1)
}

function versionAt(spans: unknown, place: number): string | undefined {
  const span: unknown = Array.isArray(spans) ? spans.at(place) : undefined
  return isRecord(span) ? weightVersionOf(span.version) : undefined
}
