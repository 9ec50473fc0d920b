/** The other side of `python-thread.ts`: starts Python, then answers one job after the other. */
import { parentPort, workerData } from 'node:worker_threads'
import { ProxyError } from '../../../../base/errors.ts'

/** What works from now on, the one before the other. */
export interface ThreadProgress {
  works: 'python' | 'template'
}

export type ThreadReply<Answer> =
  | { answer: Answer }
  | { error: ThreadError }
  /** There was not enough memory; the thread is of no use any more. */
  | { exhausted: true }

/** The fields of a {@link ProxyError}. */
export type ThreadError = Pick<ProxyError, 'code' | 'message' | 'param'>

/** There is not enough memory for what a template does; the thread that it ran on is to be replaced. */
export class MemoryExhaustion extends Error {}

/**
 * Says what works, or why it does not.
 * @param open throws a ProxyError if the template cannot be used
 */
export async function answerJobs<Python, Job, Answer>(
  start: () => Promise<Python>,
  open: (python: Python) => (job: Job) => Answer,
): Promise<void> {
  limitMemory((workerData as { maxMemoryBytes: number }).maxMemoryBytes)
  const port = parentPort!
  const say = (reply: ThreadProgress | ThreadReply<Answer>) => port.postMessage(reply)
  const python = await start()
  say({ works: 'python' })
  try {
    const answer = open(python)
    port.on('message', (job: Job) => say(replyTo(answer, job)))
    say({ works: 'template' })
  } catch (error) {
    say(toErrorReply(error))
  }
}

function replyTo<Job, Answer>(answer: (job: Job) => Answer, job: Job): ThreadReply<Answer> {
  try {
    return { answer: answer(job) }
  } catch (error) {
    return toErrorReply(error)
  }
}

/** @throws what is no answer to a job */
function toErrorReply(error: unknown): ThreadReply<never> {
  if (error instanceof MemoryExhaustion) return { exhausted: true }
  if (!(error instanceof ProxyError)) throw error
  const { code, message, param } = error
  return { error: { code, message, param } }
}

/** WebAssembly's memory grows through this; Emscripten takes a failure for a lack of memory, and Python raises its error. */
function limitMemory(maxBytes: number): void {
  const { prototype } = (globalThis as unknown as { WebAssembly: { Memory: { prototype: GrowingMemory } } })
    .WebAssembly.Memory
  const grow = prototype.grow
  prototype.grow = function (pages) {
    if (this.buffer.byteLength + pages * PAGE_BYTES > maxBytes) throw new RangeError('too much memory')
    return grow.call(this, pages)
  }
}

/** Node's types have no WebAssembly, which is a part of the browser's. */
interface GrowingMemory {
  readonly buffer: ArrayBuffer
  grow(this: GrowingMemory, pages: number): number
}

/** Of WebAssembly. */
const PAGE_BYTES = 65_536
