import { isSea } from 'node:sea'
import { fileURLToPath } from 'node:url'

/**
 * Returns the command that runs llm-proxy as this process does, for `spawn(file, [...args, 'serve'])`: the standalone
 * executable, or the launcher of a checkout with the same Node.js.
 */
export function getOwnCommand(): [file: string, ...args: string[]] {
  if (isSea()) return [process.execPath]
  return [process.execPath, fileURLToPath(new URL('../../bin/llm-proxy', import.meta.url))]
}

/** Returns the command for the user to type: the executable as typed, npm's package, or the launcher of a checkout. */
export function getTypedCommand(): string {
  if (isSea()) return process.argv0
  return import.meta.url.includes('/node_modules/') ? 'npx llm-proxy' : 'bin/llm-proxy'
}
