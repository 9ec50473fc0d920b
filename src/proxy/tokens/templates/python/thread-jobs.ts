/** The thread of `python-thread.ts`: starts Python, then runs one job after the other. */
import { parentPort, workerData } from 'node:worker_threads'
import { ProxyError } from '../../../../base/errors.ts'

/** The part that has started: first Python, then the template. */
export interface ThreadProgress {
  works: 'python' | 'template'
}

export type ThreadReply<Reply> =
  | { answer: Reply }
  | { error: ThreadError }
  /** Why the thread must be replaced. */
  | { damaged: string }

/** The fields of a {@link ProxyError}. */
export type ThreadError = Pick<ProxyError, 'code' | 'message' | 'param'>

/** The error of a template that exceeds the memory limit or changes Python; its thread must be replaced. */
export class PythonDamage extends Error {}

/** The connection to the event loop that sends the jobs. */
export interface JobPort {
  readonly maxMemoryBytes: number
  postMessage(reply: unknown): void
  on(event: 'message', listener: (job: unknown) => void): unknown
}

/**
 * Starts Python, reports progress or the error, and runs jobs.
 * @param open throws a ProxyError if the template cannot be used
 * @param port default: that of this thread
 */
export async function serveJobs<Python, Job, Reply>(
  start: () => Promise<Python>,
  open: (python: Python) => (job: Job) => Reply,
  port: JobPort = getThreadPort(),
): Promise<void> {
  limitMemory(port.maxMemoryBytes)
  const say = (reply: ThreadProgress | ThreadReply<Reply>) => port.postMessage(reply)
  const python = await start()
  say({ works: 'python' })
  try {
    const answer = open(python)
    port.on('message', (job) => say(replyTo(answer, job as Job)))
    say({ works: 'template' })
  } catch (error) {
    say(toErrorReply(error))
  }
}

function getThreadPort(): JobPort {
  const port = parentPort!
  return {
    maxMemoryBytes: (workerData as { maxMemoryBytes: number }).maxMemoryBytes,
    postMessage: (reply) => port.postMessage(reply),
    on: (event, listener) => port.on(event, listener),
  }
}

function replyTo<Job, Reply>(answer: (job: Job) => Reply, job: Job): ThreadReply<Reply> {
  try {
    return { answer: answer(job) }
  } catch (error) {
    return toErrorReply(error)
  }
}

/** Converts an error to a reply. @throws errors that are not the result of a job */
function toErrorReply(error: unknown): ThreadReply<never> {
  if (error instanceof PythonDamage) return { damaged: error.message }
  if (!(error instanceof ProxyError)) throw error
  const { code, message, param } = error
  return { error: { code, message, param } }
}

/**
 * Limits WebAssembly's memory, which grows through this function; Emscripten treats an exception as a lack of memory,
 * and Python raises MemoryError.
 */
function limitMemory(maxBytes: number): void {
  const { prototype } = (globalThis as unknown as { WebAssembly: { Memory: { prototype: GrowingMemory } } })
    .WebAssembly.Memory
  const grow = prototype.grow
  prototype.grow = function (pages) {
    if (this.buffer.byteLength + pages * PAGE_BYTES > maxBytes) throw new RangeError('too much memory')
    return grow.call(this, pages)
  }
}

/** WebAssembly's memory, which Node's types do not declare. */
interface GrowingMemory {
  readonly buffer: ArrayBuffer
  grow(this: GrowingMemory, pages: number): number
}

/** The page size of WebAssembly. */
const PAGE_BYTES = 65_536
