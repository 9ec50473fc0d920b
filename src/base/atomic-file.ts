import { rename, rm } from 'node:fs/promises'
import { ProxyError } from './errors.ts'

/**
 * Writes a file atomically: a reader of `path` never sees a partial file.
 * @param write creates the file at the path that it receives
 * @throws ProxyError `start_failed` when it cannot be written; a ProxyError of `write` unchanged
 */
export async function writeFileAtomically(
  path: string,
  write: (partial: string) => Promise<void>,
): Promise<void> {
  const partial = `${path}.${process.pid}.partial`
  try {
    await write(partial)
    await rename(partial, path)
  } catch (cause) {
    await rm(partial, { force: true })
    if (cause instanceof ProxyError) throw cause
    throw new ProxyError('start_failed', `cannot write ${path}`, { cause })
  }
}
