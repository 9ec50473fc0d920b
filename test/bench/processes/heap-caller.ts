/**
 * Sends requests with very many new messages, all at once, on a separate thread: short requests are timed meanwhile.
 */
import { parentPort, workerData } from 'node:worker_threads'
import { type HeapJob, post } from '../parts/short-calls.ts'

const { url, messages, calls, fields }: HeapJob = workerData
const bodies = Array.from({ length: calls }, (_, call) => ({ session: `${url}/heap-${call}`, call }))
const responses = await Promise.all(
  bodies.map(({ session, call }) => post(session, fields, messages, `call ${call}`)),
)
parentPort!.postMessage([...new Set(responses.map(({ status }) => status))])
