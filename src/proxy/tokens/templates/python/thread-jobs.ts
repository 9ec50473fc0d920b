/** Runs on the thread of `python-thread.ts`: starts Python, then runs jobs one by one. */
import { parentPort, workerData } from 'node:worker_threads'
import { ProxyError } from '../../../../base/errors.ts'

/** A message that reports what has started: first Python, then the template. */
export interface ThreadProgress {
  works: 'python' | 'template'
}

/** The reply to a job. */
export type ThreadReply<Reply> =
  | { answer: Reply }
  | { error: ThreadError }
  /** The reason why the thread must be replaced. */
  | { damaged: string }

/** The fields of a {@link ProxyError}. */
export type ThreadError = Pick<ProxyError, 'code' | 'message' | 'param'>

/** The error of a template that exceeds the memory limit or changes Python; its thread must be replaced. */
export class PythonDamage extends Error {}

/** The connection to the event loop, which sends the jobs. */
export interface JobPort {
  readonly maxMemoryBytes: number
  postMessage(reply: unknown): void
  on(event: 'message', listener: (job: unknown) => void): unknown
}

/**
 * Starts Python, opens the template, and runs jobs. Reports progress or the error to the port.
 * @param open opens the template, and returns the function that runs a job; throws a ProxyError if the template is not
 *   valid
 * @param port default: the port of this thread
 */
export async function serveJobs<Python, Job, Reply>(
  start: () => Promise<Python>,
  open: (python: Python) => (job: Job) => Reply,
  port: JobPort = getThreadPort(),
): Promise<void> {
  limitMemory(port.maxMemoryBytes)
  const send = (reply: ThreadProgress | ThreadReply<Reply>) => port.postMessage(reply)
  const python = await start()
  send({ works: 'python' })
  try {
    const run = open(python)
    port.on('message', (job) => send(runJob(run, job as Job)))
    send({ works: 'template' })
  } catch (error) {
    send(toErrorReply(error))
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

function runJob<Job, Reply>(run: (job: Job) => Reply, job: Job): ThreadReply<Reply> {
  try {
    return { answer: run(job) }
  } catch (error) {
    return toErrorReply(error)
  }
}

/** Converts an error of a job to a reply. @throws any other error */
function toErrorReply(error: unknown): ThreadReply<never> {
  if (error instanceof PythonDamage) return { damaged: error.message }
  if (!(error instanceof ProxyError)) throw error
  const { code, message, param } = error
  return { error: { code, message, param } }
}

/**
 * Limits WebAssembly's memory by replacing the function that increases it. If that function throws, Emscripten reports
 * a lack of memory, and Python raises MemoryError.
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

/** `WebAssembly.Memory`, which Node's types do not declare. */
interface GrowingMemory {
  readonly buffer: ArrayBuffer
  grow(this: GrowingMemory, pages: number): number
}

/** The page size of WebAssembly. */
const PAGE_BYTES = 65_536
