/**
 * Runs several test files in one process, one after another. A process loads the modules of the proxy, compiles them,
 * and starts Python: for most files this costs more CPU time than their tests. Each file is one test, named by its path;
 * what its code imports as `tap` is that test.
 */
import { globSync, readFileSync } from 'node:fs'
import { registerHooks } from 'node:module'
import { join } from 'node:path'
import { pathToFileURL } from 'node:url'
import { isDeepStrictEqual } from 'node:util'
import tap, { type Test } from 'tap'
import { beginFile, endFile } from './no-stalls.ts'

const ROOT = join(import.meta.dirname, '../..')
const SCHEME = 'tap-of:'
/** A file that hangs must not take the time of the others. */
const FILE_LIMIT_MS = 600_000
/** The time after the last file for which handles may keep the process alive: servers close within seconds. */
const END_LIMIT_MS = Number(process.env.GROUP_END_LIMIT_MS ?? 20_000)

/**
 * Returns the files that run in separate processes: they measure the process, break its threads, or take most of a
 * group's time.
 */
export function listSeparateFiles(): string[] {
  const { tap, scripts } = JSON.parse(readFileSync(join(ROOT, 'package.json'), 'utf8')) as {
    tap: { include: string[] }
    scripts: { 'test:slow': string }
  }
  return [...tap.include, ...scripts['test:slow'].split(' ')].filter((path) => path.endsWith('.test.ts'))
}

/** Returns the files of a group: those of the patterns without those that run separately, sorted. */
export function listGroupFiles(patterns: readonly string[]): string[] {
  const separate = new Set(listSeparateFiles())
  return globSync([...patterns], { cwd: ROOT })
    .filter((path) => !separate.has(path))
    .sort()
}

/** Returns the process state that a file must not change. */
function getProcessState() {
  // The fastokens addon sets it when a tokenizer is opened.
  const { FASTOKENS_BPE_THREADS: _, ...env } = process.env
  return { env, cwd: process.cwd(), fetch, setTimeout, Date }
}

/** Runs the files of these patterns, relative to the repository's root. A file that leaves the process changed fails. */
export async function runFiles(...patterns: string[]): Promise<void> {
  const tests = new Map<string, Test>()
  Object.assign(globalThis, { getTestOfFile: (url: string) => tests.get(url) })
  registerHooks({
    resolve(specifier, context, next) {
      const importer = context.parentURL
      if (specifier !== 'tap' || !importer || importer.includes('/node_modules/'))
        return next(specifier, context)
      // A test that is not part of the file's would wait for the file, which waits for it.
      if (!tests.has(importer))
        throw new Error(`Only the test file of a group can import tap, not ${importer}`)
      return { url: SCHEME + importer, format: 'module', shortCircuit: true }
    },
    load(url, context, next) {
      if (!url.startsWith(SCHEME)) return next(url, context)
      const name = JSON.stringify(url.slice(SCHEME.length))
      return { format: 'module', source: `export default getTestOfFile(${name})`, shortCircuit: true }
    },
  })
  // A file's own process ends when nothing keeps it alive; a group's must not.
  const alive = setInterval(() => {}, 1000)
  for (const path of listGroupFiles(patterns)) {
    const before = getProcessState()
    beginFile(join(ROOT, path))
    await tap.test(path, { timeout: FILE_LIMIT_MS }, async (t) => {
      const { href } = pathToFileURL(join(ROOT, path))
      tests.set(href, t)
      await import(href)
    })
    const stalls = endFile()
    if (stalls !== undefined) tap.fail(`${path}: ${stalls}`)
    if (!isDeepStrictEqual(getProcessState(), before)) tap.fail(`a file leaves the process changed: ${path}`)
  }
  clearInterval(alive)
  // Without this, a group whose file has failed before it closed a server would run until the limit of the gate's part.
  setTimeout(() => {
    tap.fail(`files leave open handles: ${process.getActiveResourcesInfo().join(', ')}`)
    process.exit(1)
  }, END_LIMIT_MS).unref()
}
