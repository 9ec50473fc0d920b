/** Reading one of a model's files, any of which may be missing. */
import { readFileSync } from 'node:fs'
import { ProxyError } from '../../../base/errors.ts'

/** undefined if there is no such file. @throws ProxyError `config_invalid` if it cannot be read */
export function readModelFile(path: string): string | undefined {
  try {
    return readFileSync(path, 'utf8')
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'ENOENT') return undefined
    throw unreadable(path, error)
  }
}

/** undefined if there is no such file. @throws ProxyError `config_invalid` if it is not JSON */
export function readModelJson<T>(path: string): T | undefined {
  const text = readModelFile(path)
  try {
    return text === undefined ? undefined : (JSON.parse(text) as T)
  } catch (error) {
    throw unreadable(path, error)
  }
}

function unreadable(path: string, error: unknown): ProxyError {
  return new ProxyError('config_invalid', `cannot read ${path}: ${(error as Error).message}`, {
    cause: error,
  })
}
