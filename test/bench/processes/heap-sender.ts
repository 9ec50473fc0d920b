/**
 * Sends requests with very many new messages, all at once, on a separate thread: short requests are timed meanwhile.
 */
import { parentPort, workerData } from 'node:worker_threads'
import { type HeapJob, post } from '../parts/short-requests.ts'

const { url, messages, requests, fields }: HeapJob = workerData
const targets = Array.from({ length: requests }, (_, index) => ({ session: `${url}/heap-${index}`, index }))
const responses = await Promise.all(
  targets.map(({ session, index }) => post(session, fields, messages, `call ${index}`)),
)
parentPort!.postMessage([...new Set(responses.map(({ status }) => status))])
