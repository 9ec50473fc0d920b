/**
 * The thread that reads completions by a `response_template`. It keeps the parser state of each completion in progress.
 */
import { workerData } from 'node:worker_threads'
import type { PyProxy } from 'pyodide/ffi'
import {
  PythonResponses,
  type ResponseDeltas,
  type ResponseOpening,
  type ResponseTemplate,
} from '../templates/python/python-responses.ts'
import { serveJobs } from '../templates/python/thread-jobs.ts'

export interface ResponseThreadConfig {
  /** The template as JSON. */
  template: string
}

export type ResponseJob =
  | { kind: 'read'; id: number; opening?: ResponseOpening; texts: readonly string[]; isEnd: boolean }
  | { kind: 'close'; id: number }

/** The reply to a job. `unknown`: another thread was reading the completion. */
export type ResponseReply = ResponseDeltas | 'unknown'

const NOTHING: ResponseDeltas = { deltas: [], undecided: 0 }
const responses = new Map<number, PyProxy>()

void serveJobs<PythonResponses, ResponseJob, ResponseReply>(PythonResponses.start, (python) => {
  const template = python.open((workerData as ResponseThreadConfig).template)
  return (job) => run(template, job)
})

function run(template: ResponseTemplate, job: ResponseJob): ResponseReply {
  if (job.kind === 'close') {
    close(job.id)
    return NOTHING
  }
  const { id, opening, texts, isEnd } = job
  const answer = opening ? template.begin(opening) : responses.get(id)
  if (answer === undefined) return 'unknown'
  responses.set(id, answer)
  const read = template.read(answer, texts, isEnd)
  if (isEnd) close(id)
  return read
}

function close(id: number): void {
  responses.get(id)?.destroy()
  responses.delete(id)
}
