/** The program of an earlier commit, with the current libraries. */
import { execFileSync } from 'node:child_process'
import { mkdirSync, symlinkSync } from 'node:fs'
import { join } from 'node:path'

const ROOT = join(import.meta.dirname, '../..')
const SOURCES = ['bin', 'src', 'package.json', 'tsconfig.json']

function git(...args: string[]): Buffer {
  return execFileSync('git', args, {
    cwd: ROOT,
    maxBuffer: 256 * 1024 * 1024,
    stdio: ['ignore', 'pipe', 'ignore'],
  })
}

/** Returns the reason to skip a test because the commit cannot be extracted; false if it can. */
export function getSkipReason(commit: string): string | false {
  try {
    git('cat-file', '-e', `${commit}^{tree}`)
    return false
  } catch {
    return `the history of this clone does not reach ${commit}`
  }
}

/**
 * Extracts the program of a commit into a new folder.
 * @returns its launcher
 */
export function extractRelease(commit: string, folder: string): string {
  mkdirSync(folder, { recursive: true })
  execFileSync('tar', ['x', '-C', folder], { input: git('archive', commit, ...SOURCES) })
  symlinkSync(join(ROOT, 'node_modules'), join(folder, 'node_modules'))
  return join(folder, 'bin/llm-proxy')
}
