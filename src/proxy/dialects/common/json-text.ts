import { ProxyError } from '../../../base/errors.ts'

/**
 * Serializes a part of a request as JSON. A value that was parsed from JSON can be nested too deeply to be serialized.
 * @throws ProxyError `invalid_request`
 */
export function toJsonText(value: unknown): string {
  try {
    return JSON.stringify(value)
  } catch (cause) {
    throw new ProxyError('invalid_request', 'The request is nested too deeply', { cause })
  }
}
