import { ProxyError } from '../../../base/errors.ts'

/** What of a request no engine can be asked. @param param the field at fault, as the caller wrote it */
export function unsupported(message: string, param: string): ProxyError {
  return new ProxyError('unsupported', message, { param })
}

/** Creates the error for a choice that demands a tool call where no tool is left, which engines reject or ignore. */
export function noToolLeft(param: string): ProxyError {
  return unsupported(`'${param}' demands a call, and no tool is left that the model can call`, param)
}

/** What of a request is not as it must be, beyond its schema. @param param as of {@link unsupported} */
export function invalid(message: string, param: string): ProxyError {
  return new ProxyError('invalid_request', message, { param })
}
