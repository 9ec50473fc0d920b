import { createUnsupportedError, type ProxyError } from '../../../base/errors.ts'

/** Returns the error for a choice that demands a tool call where no tool is left, which engines reject or ignore. */
export function createNoToolLeftError(param: string): ProxyError {
  return createUnsupportedError(
    `'${param}' demands a tool call, and no tool is left that the model can call`,
    param,
  )
}
