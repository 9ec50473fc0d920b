/**
 * Detects requests that block all others: an integration or slow test fails, whatever its assertions, if a proxy's
 * event loop was blocked during it. The measure is CPU time of the loop's thread while a proxy serves; if the proxy
 * runs in the test's process, it includes the test's own work. Start-up is excluded, because it loads modules and
 * compiles routes and schemas.
 */
import { mkdtempSync, readFileSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { pathToFileURL } from 'node:url'
import { type LoopWatch, watchLoop } from './loop-cpu.ts'
import { SHARED_STALL_LIMIT_MS, STALLS_FILE } from './stall-limit.ts'

/** Tests that load a proxy to its limit, or for minutes, define their own limits. */
const LOAD_TESTS =
  /[\\/]slow[\\/](fuzz|power|complexity|agent-retries|bad-network|balancers|generated-clients|gateway-client|kill|litestream|many-sessions|nodes-killed|two-releases|python-sdks|rollouts-many|schemathesis)/

/** Whether stalls fail the file that runs. */
let isGuarded = isGuardedFile(process.argv[1] ?? '')
let watch: LoopWatch | undefined
/** The number of running operations that are excluded from the measurement. */
let unwatchedCount = 0
let isAllowed = false
let stallsMs: number[] = []
let childFolder: string | undefined

process.on('exit', () => {
  const message = endFile()
  if (message === undefined) return
  process.exitCode = 1
  process.stderr.write(`${message}\n`)
})

function isGuardedFile(path: string): boolean {
  return /[\\/]test[\\/](integration|slow|helpers)[\\/]/.test(path) && !LOAD_TESTS.test(path)
}

/** Starts the measurement of a test file; its path is absolute. */
export function beginFile(path: string): void {
  isGuarded = isGuardedFile(path)
}

/**
 * Ends the measurement of a test file.
 * @returns a message with the stalls of its proxies; undefined if there are none
 */
export function endFile(): string | undefined {
  watch?.stop()
  watch = undefined
  const stalls = [...stallsMs, ...readChildStalls()]
  const isPassed = stalls.length === 0 || isAllowed
  stallsMs = []
  isAllowed = false
  if (isPassed) return undefined
  const times = stalls.map((ms) => `${Math.round(ms)} ms`).join(', ')
  return `The event loop of a proxy was blocked for ${times} of CPU time (see test/helpers/no-stalls.ts)`
}

/** Starts a server in this process, and watches the event loop from then on. */
export async function startWatched<Server>(start: () => Promise<Server>): Promise<Server> {
  if (isGuarded) watch ??= watchLoop(recordStall)
  return await runUnwatched(start)
}

function recordStall(ms: number): void {
  if (unwatchedCount === 0 && ms > SHARED_STALL_LIMIT_MS) stallsMs.push(ms)
}

/** Runs expensive work of the test in the process of a proxy, and excludes it from the measurement. */
export async function runUnwatched<Result>(work: () => Result | Promise<Result>): Promise<Result> {
  watch?.measure()
  unwatchedCount += 1
  try {
    return await work()
  } finally {
    watch?.measure()
    unwatchedCount -= 1
  }
}

/** Exempts a test file that must block the loop; the reason is for its readers. */
export function allowStalls(_reason: string): void {
  isAllowed = true
}

/** Returns environment variables that make a Node process record its stalls from its first request on. */
export function getChildEnv(): Record<string, string> {
  if (!isGuarded) return {}
  childFolder ??= mkdtempSync(join(tmpdir(), 'stalls-'))
  const program = pathToFileURL(join(import.meta.dirname, 'watched-child.ts'))
  return { NODE_OPTIONS: `--import=${program}`, [STALLS_FILE]: join(childFolder, 'stalls') }
}

function readChildStalls(): number[] {
  if (childFolder === undefined) return []
  try {
    const text = readFileSync(join(childFolder, 'stalls'), 'utf8')
    return text.trim().split('\n').map(Number)
  } catch {
    // No child has stalled.
    return []
  } finally {
    rmSync(childFolder, { recursive: true })
    childFolder = undefined
  }
}
