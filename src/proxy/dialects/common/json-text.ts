import { ProxyError } from '../../../base/errors.ts'

/**
 * A part of a request as JSON text. What can be read from JSON can be nested too deeply to be written as JSON again.
 * @throws ProxyError `invalid_request`
 */
export function toJsonText(value: unknown): string {
  try {
    return JSON.stringify(value)
  } catch (cause) {
    throw new ProxyError('invalid_request', 'The request is nested too deeply', { cause })
  }
}
