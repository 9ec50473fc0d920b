import { createUnsupportedError, type ProxyError } from '../../../base/errors.ts'

/**
 * Returns the error for a tool choice that demands a tool call although no tool is left. Engines reject or ignore such
 * a choice.
 */
export function createNoToolLeftError(param: string): ProxyError {
  return createUnsupportedError(
    `'${param}' demands a tool call, and no tool is left that the model can call`,
    param,
  )
}
