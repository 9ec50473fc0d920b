/**
 * The thread that parses completions by a `response_template`. It stores the parser state of each completion in
 * progress.
 */
import { workerData } from 'node:worker_threads'
import type { PyProxy } from 'pyodide/ffi'
import {
  type CompletionContext,
  PythonResponses,
  type ResponseDeltas,
  type ResponseTemplate,
} from '../templates/python/python-responses.ts'
import { serveJobs } from '../templates/python/thread-jobs.ts'

/** The data of the thread. */
export interface ResponseThreadConfig {
  /** The template as JSON. */
  template: string
}

/** `read`: parse texts, after opening the completion if `opening` is set. `close`: discard a completion's state. */
export type ResponseJob =
  | { kind: 'read'; id: number; opening?: CompletionContext; texts: readonly string[]; isEnd: boolean }
  | { kind: 'close'; id: number }

/** The reply to a job. `unknown`: this thread has no state of the completion, because another one was parsing it. */
export type ResponseReply = ResponseDeltas | 'unknown'

const NO_DELTAS: ResponseDeltas = { deltas: [], undecided: 0 }
const responses = new Map<number, PyProxy>()

void serveJobs<PythonResponses, ResponseJob, ResponseReply>(PythonResponses.start, (python) => {
  const template = python.open((workerData as ResponseThreadConfig).template)
  return (job) => run(template, job)
})

function run(template: ResponseTemplate, job: ResponseJob): ResponseReply {
  if (job.kind === 'close') {
    close(job.id)
    return NO_DELTAS
  }
  const { id, opening, texts, isEnd } = job
  const parser = opening ? template.begin(opening) : responses.get(id)
  if (parser === undefined) return 'unknown'
  responses.set(id, parser)
  const read = template.read(parser, texts, isEnd)
  if (isEnd) close(id)
  return read
}

function close(id: number): void {
  responses.get(id)?.destroy()
  responses.delete(id)
}
