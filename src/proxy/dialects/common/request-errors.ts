import { ProxyError } from '../../../base/errors.ts'

/** Returns the error for a request that no engine can serve. @param param the field's path, as the client wrote it */
export function createUnsupportedError(message: string, param: string): ProxyError {
  return new ProxyError('unsupported', message, { param })
}

/** Returns the error for a choice that demands a tool call where no tool is left, which engines reject or ignore. */
export function createNoToolLeftError(param: string): ProxyError {
  return createUnsupportedError(
    `'${param}' demands a tool call, and no tool is left that the model can call`,
    param,
  )
}

/** Returns the error for a request that is invalid beyond its schema. @param param as for {@link createUnsupportedError} */
export function createInvalidError(message: string, param: string): ProxyError {
  return new ProxyError('invalid_request', message, { param })
}
