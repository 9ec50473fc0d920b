/**
 * No call may hold up all others: an integration or slow test fails, whatever it says, if the event loop of a proxy stood
 * still in it. CPU time counts, of the loop's thread, while a proxy serves; with the proxy in the process of its test, that
 * is also what the test does. Starting does not count: modules are loaded then, and routes and schemas compiled.
 */
import { mkdtempSync, readFileSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { pathToFileURL } from 'node:url'
import { type LoopWatch, watchLoop } from './loop-cpu.ts'
import { SHARED_STALL_LIMIT_MS, STALLS_FILE } from './stall-limit.ts'

/** Those that load a proxy as hard as they can, or for minutes, tell themselves what it may do then. */
const LOADS =
  /[\\/]slow[\\/](fuzz|power|complexity|agent-retries|bad-network|balancers|generated-clients|gateway-client|kill|litestream|many-sessions|nodes-killed|two-releases|python-sdks|rollouts-many|schemathesis)/
const PROGRAM = process.argv[1] ?? ''
const IS_GUARDED = /[\\/]test[\\/](integration|slow|helpers)[\\/]/.test(PROGRAM) && !LOADS.test(PROGRAM)

let watch: LoopWatch | undefined
/** What runs now and does not count. */
let apart = 0
let isAllowed = false
const stallsMs: number[] = []
let folderOfChildren: string | undefined

process.on('exit', () => {
  const stalls = [...stallsMs, ...stallsOfChildren()]
  if (stalls.length === 0 || isAllowed) return
  process.exitCode = 1
  const times = stalls.map((ms) => `${Math.round(ms)} ms`).join(', ')
  process.stderr.write(
    `The event loop of a proxy stood still for ${times} of CPU time (see test/helpers/no-stalls.ts)\n`,
  )
})

/** Starts a server in this process, and watches the loop from then on. */
export async function watched<Server>(start: () => Promise<Server>): Promise<Server> {
  if (IS_GUARDED) watch ??= watchLoop(noteStall)
  return await aside(start)
}

function noteStall(ms: number): void {
  if (apart === 0 && ms > SHARED_STALL_LIMIT_MS) stallsMs.push(ms)
}

/** Does what takes the test itself long, in the process of a proxy: it does not count. */
export async function aside<Made>(work: () => Made | Promise<Made>): Promise<Made> {
  watch?.look()
  apart += 1
  try {
    return await work()
  } finally {
    watch?.look()
    apart -= 1
  }
}

/** For a test file that must stall the loop; the reason is for its readers. */
export function stallsOnPurpose(_reason: string): void {
  isAllowed = true
}

/** What a process of Node is to have in its environment to be watched, from its first request on. */
export function watchedChild(): Record<string, string> {
  if (!IS_GUARDED) return {}
  folderOfChildren ??= mkdtempSync(join(tmpdir(), 'stalls-'))
  const program = pathToFileURL(join(import.meta.dirname, 'watched-child.ts'))
  return { NODE_OPTIONS: `--import=${program}`, [STALLS_FILE]: join(folderOfChildren, 'stalls') }
}

function stallsOfChildren(): number[] {
  if (folderOfChildren === undefined) return []
  try {
    const text = readFileSync(join(folderOfChildren, 'stalls'), 'utf8')
    return text.trim().split('\n').map(Number)
  } catch {
    // None has stalled.
    return []
  } finally {
    rmSync(folderOfChildren, { recursive: true })
  }
}
