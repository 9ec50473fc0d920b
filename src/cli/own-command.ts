import { isSea } from 'node:sea'
import { fileURLToPath } from 'node:url'

/**
 * The command that runs llm-proxy as this process runs it, for `spawn(file, [...args, 'serve'])`: the standalone
 * executable, or the launcher of a checkout under this same Node.
 */
export function getOwnCommand(): [file: string, ...args: string[]] {
  if (isSea()) return [process.execPath]
  return [process.execPath, fileURLToPath(new URL('../../bin/llm-proxy', import.meta.url))]
}

/** The same for people to type: the executable as they typed it, npm's package, or the launcher of a checkout. */
export function getTypedCommand(): string {
  if (isSea()) return process.argv0
  return import.meta.url.includes('/node_modules/') ? 'npx llm-proxy' : 'bin/llm-proxy'
}
