/**
 * `npm run build:addon`: builds the fast tokenizer with cargo and copies it to where the program loads it. Does nothing
 * if it is newer than its sources; prints a message if cargo does not work, because the addon is optional.
 */
import { spawnSync } from 'node:child_process'
import { copyFileSync, readdirSync, renameSync, statSync } from 'node:fs'
import { join } from 'node:path'
import { findCargoProblem } from './cargo.ts'

const ROOT = join(import.meta.dirname, '../..')
const CRATE = join(ROOT, 'src/proxy/tokens/tokenizer/fastokens')
const ADDON = join(CRATE, 'fastokens.node')
const LIBRARY = `libllm_proxy_fastokens.${process.platform === 'darwin' ? 'dylib' : 'so'}`

if (
  changedAt(ADDON) <
  Math.max(
    ...readdirSync(CRATE)
      .filter(isSource)
      .map((name) => changedAt(join(CRATE, name))),
  )
)
  build()

function build(): void {
  const target = process.env.CARGO_TARGET_DIR ?? join(ROOT, 'node_modules/.cache/llm-proxy/fastokens')
  const env = { ...process.env, CARGO_TARGET_DIR: target }
  const problem = findCargoProblem(env)
  if (problem !== undefined) {
    console.warn(`${problem}: the fast tokenizer is left out, and token mode needs more of the processor`)
    return
  }
  console.warn(
    'building the fast tokenizer with cargo: this takes minutes, and downloads crates the first time',
  )
  const { status } = spawnSync('cargo', ['build', '--release', '--quiet'], {
    cwd: CRATE,
    env,
    stdio: 'inherit',
  })
  if (status !== 0) {
    console.error(
      'cargo could not build the fast tokenizer: it needs Rust 1.85 or newer and its crates; a PATH without cargo leaves it out',
    )
    process.exitCode = 1
    return
  }
  // Replaced atomically, because a process may have loaded the existing file.
  copyFileSync(join(target, 'release', LIBRARY), `${ADDON}.${process.pid}`)
  renameSync(`${ADDON}.${process.pid}`, ADDON)
}

function isSource(name: string): boolean {
  return name.endsWith('.rs') || name.endsWith('.toml')
}

function changedAt(path: string): number {
  return statSync(path, { throwIfNoEntry: false })?.mtimeMs ?? 0
}
