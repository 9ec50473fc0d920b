/** Reads optional files of a model. */
import { readFileSync } from 'node:fs'
import { ProxyError } from '../../../base/errors.ts'

/**
 * Returns a file's text, or undefined if it does not exist. @throws ProxyError `config_invalid` if it cannot be read
 */
export function readModelFile(path: string): string | undefined {
  try {
    return readFileSync(path, 'utf8')
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'ENOENT') return undefined
    throw createUnreadableError(path, error)
  }
}

/** Returns a file's JSON, or undefined if it does not exist. @throws ProxyError `config_invalid` if it is not JSON */
export function readModelJson<T>(path: string): T | undefined {
  const text = readModelFile(path)
  try {
    return text === undefined ? undefined : (JSON.parse(text) as T)
  } catch (error) {
    throw createUnreadableError(path, error)
  }
}

function createUnreadableError(path: string, error: unknown): ProxyError {
  return new ProxyError('config_invalid', `cannot read ${path}: ${(error as Error).message}`, {
    cause: error,
  })
}
