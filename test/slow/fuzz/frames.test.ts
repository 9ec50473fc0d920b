/**
 * Frames with random errors, from connected workers and from connections that only send a hello: an open request ends,
 * by its own worker or another one, and the proxy continues. A fifth of `FUZZ_RUNS`.
 */
import assert from 'node:assert/strict'
import { once } from 'node:events'
import { setTimeout as sleep } from 'node:timers/promises'
import fc from 'fast-check'
import t from 'tap'
import { ProxyError } from '../../../src/base/errors.ts'
import { createBrokenTexts, createMutations } from '../../helpers/mutations.ts'
import { RawWorker } from '../../helpers/raw-worker.ts'
import { chatRequest, type RelayServer, readEvents, relayServerFor } from '../../helpers/relay-server.ts'
import { watchStalls } from '../../helpers/stall-watch.ts'

const RUNS = Math.ceil(Number(process.env.FUZZ_RUNS ?? 1_000) / 10)
const HANG_MS = 30_000

/** Placeholder for the id of the open request. */
const REQUEST_ID = 'the-call'
const DELTA = {
  content: 'hi',
  reasoning: 'hm',
  tool_calls: [{ index: 0, id: 'c', function: { name: 'run', arguments: '{}' } }],
  token_ids: [3, 4],
  logprobs: [-0.5, -1],
}
const FRAMES: object[] = [
  { type: 'completion_chunk', request_id: REQUEST_ID, seq: 1, prompt_token_ids: [1, 2], deltas: [DELTA] },
  {
    type: 'completion_response',
    request_id: REQUEST_ID,
    seq: 1,
    finish_reason: 'stop',
    usage: { prompt_tokens: 2, completion_tokens: 2, total_tokens: 4 },
    weight_version: '7',
    error: null,
  },
  {
    type: 'completion_response',
    request_id: REQUEST_ID,
    token_ids: [3, 4],
    log_probs: [-0.5, -1],
    completion_text: 'hi',
    content_text: 'hi',
    tool_calls: [{ id: 'c', type: 'function', function: { name: 'run', arguments: '{}' } }],
    finish_reason: 'stop',
    error: null,
  },
  {
    type: 'worker_status',
    healthy: true,
    load: { running: 1, waiting: 0 },
    weight_version: '8',
    draining: false,
  },
  { type: 'calls_alive', request_ids: [REQUEST_ID] },
  { type: 'pong' },
]
const HELLOS: object[] = [
  { type: 'worker_hello', worker_id: 'v1' },
  {
    type: 'worker_hello',
    worker_id: 'v2',
    protocol: 2,
    capabilities: ['cancel', 'resume'],
    models: [{ id: 'm', context_length: 100 }],
    max_concurrency: 4,
    weight_version: '7',
    epoch: 1,
    requests: [{ request_id: 'x', acked_seq: 1 }],
  },
]

const withTimeout = <T>(work: Promise<T>): Promise<T> => {
  const late = new AbortController()
  const hang = sleep(HANG_MS, undefined, { signal: late.signal }).then(() => {
    throw new Error(`no response within ${HANG_MS} ms`)
  })
  hang.catch(() => {})
  return Promise.race([work, hang]).finally(() => late.abort())
}

/** Serves a request to its end after `frame`, with another worker if the proxy has disconnected this one. */
async function serveWith(
  { url, backend }: RelayServer,
  worker: RawWorker,
  frame: string,
): Promise<RawWorker> {
  const request = chatRequest('x')
  const ended = readEvents(backend, request).catch((error: unknown) => error)
  const { request_id: id } = await withTimeout(worker.next('completion_request'))
  worker.send(frame.replaceAll(REQUEST_ID, String(id)))
  for (const seq of [1, 2]) worker.end(id, seq)
  const isClosed = await withTimeout(Promise.race([ended.then(() => false), worker.closed.then(() => true)]))
  if (!isClosed) {
    checkEnd(await ended)
    return worker
  }
  const next = await RawWorker.hello(url, { worker_id: 'another' })
  const second = next.next('completion_request').then(({ request_id }) => next.end(request_id, 1))
  second.catch(() => {})
  checkEnd(await withTimeout(ended))
  next.socket.terminate()
  await next.closed
  return RawWorker.hello(url)
}

function checkEnd(ended: unknown): void {
  if (Array.isArray(ended)) return
  assert.ok(ended instanceof ProxyError, String(ended))
  assert.notEqual(ended.code, 'internal')
}

t.test(`${RUNS} invalid frames end only their own request, and none stays open`, async (t) => {
  const server = await relayServerFor(t, { graceMs: 0 })
  let worker = await RawWorker.hello(server.url)
  const { withoutStall } = await watchStalls(t)
  await fc.assert(
    fc.asyncProperty(fc.oneof(createMutations(...FRAMES), createBrokenTexts(...FRAMES)), (frame) =>
      withoutStall(async () => {
        worker = await serveWith(server, worker, frame)
      }),
    ),
    { numRuns: RUNS, endOnFailure: true },
  )
  t.equal(server.backend.getStatus().queued, 0)
})

t.test(`${RUNS} invalid hellos are accepted or rejected`, async (t) => {
  const { url, backend } = await relayServerFor(t)
  const outcomes: Record<string, number> = {}
  const sendHello = async (hello: string) => {
    const worker = new RawWorker(url)
    await once(worker.socket, 'open')
    worker.send(hello)
    const acknowledged = once(worker.socket, 'message').then(() => 'accepted')
    acknowledged.catch(() => {})
    const outcome = await withTimeout(Promise.race([acknowledged, worker.closed]))
    outcomes[outcome] = (outcomes[outcome] ?? 0) + 1
    worker.socket.terminate()
    await worker.closed
    assert.ok(outcome === 'accepted' || [4000, 4001, 4003, 4005].includes(Number(outcome)), String(outcome))
  }
  const { withoutStall } = await watchStalls(t)
  await fc.assert(
    fc.asyncProperty(fc.oneof(createMutations(...HELLOS), createBrokenTexts(...HELLOS)), (hello) =>
      withoutStall(() => sendHello(hello)),
    ),
    { numRuns: RUNS, endOnFailure: true },
  )
  t.ok((outcomes.accepted ?? 0) > 0, `some are accepted: ${JSON.stringify(outcomes)}`)
  t.equal(backend.getStatus().queued, 0)
})
