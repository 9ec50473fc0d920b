/** Workers do not send prompts that the proxy has already. */
import { once } from 'node:events'
import t, { type Test } from 'tap'
import { MessageTree } from '../../src/protocol/canonical/conversation.ts'
import type { GenerationEvent } from '../../src/protocol/canonical/events.ts'
import type { GenerationRequest } from '../../src/protocol/canonical/request.ts'
import { PromptIds } from '../../src/protocol/token-ids/prompt-ids.ts'
import { packTokenIds } from '../../src/protocol/worker/token-ids.ts'
import { RawWorker } from '../helpers/raw-worker.ts'
import { startWorkerClient } from '../helpers/relay-rig.ts'
import { chatRequest, readEvents, relayServerFor } from '../helpers/relay-server.ts'
import { completeResponse, respond, ScriptedBackend } from '../helpers/scripted-backend.ts'

const LONG = Int32Array.from({ length: 3_000 }, (_, index) => index * 7)
/** The common beginning of all requests. */
const FIRST = new MessageTree().addMessages([{ role: 'user', content: 'x' }])
const LONGER = Int32Array.of(...LONG, 1, 2, 3)

function createRequest(sessionId: string, more: Partial<GenerationRequest> = {}): GenerationRequest {
  return { ...chatRequest('x'), sessionId, lastMessage: FIRST, ...more } as GenerationRequest
}

function getPrompt(events: readonly GenerationEvent[]): Int32Array | undefined {
  const [start] = events
  return start?.type === 'start' ? start.promptTokenIds?.toArray() : undefined
}

t.test('whatever an engine saw before, its prompts arrive unchanged', async (t) => {
  const { url, backend } = await relayServerFor(t)
  let prompt = LONG
  const engine = new ScriptedBackend(() => {
    const [, ...rest] = completeResponse()
    return respond([{ type: 'start', engine: 'e', promptTokenIds: new PromptIds(prompt) }, ...rest])
  })
  const member = {
    name: 'e',
    kind: 'scripted',
    healthy: true,
    inFlight: 0,
    models: [],
    capacity: 8,
    takesTokenIds: true,
  }
  engine.getStatus = () => ({ members: [member], queued: 0 })
  await once(startWorkerClient(t, url, 'w', engine), 'connected')
  const prompts = [LONG, LONGER, LONGER, LONG.with(2_999, 1), Int32Array.of(5), LONGER, LONG.subarray(7)]
  for (const each of prompts) {
    prompt = each
    t.strictSame(getPrompt(await readEvents(backend, createRequest('a'))), Int32Array.from(each))
    t.strictSame(
      getPrompt(await readEvents(backend, createRequest('b', { promptTokenIds: new PromptIds(LONG) }))),
      Int32Array.from(each),
    )
  }
})

/** Sends a second request to a worker after it has reported a long prompt. */
async function sendSecondRequest(t: Test) {
  const { url, backend } = await relayServerFor(t)
  const worker = await RawWorker.hello(url, { capabilities: ['resume', 'token_ids'] })
  const first = readEvents(backend, createRequest('a'))
  const { request_id: firstId, prompt_base: none } = await worker.next('completion_request')
  t.equal(none, undefined)
  worker.chunk(firstId, 1, 'hi', { start: { engine: 'e', prompt_token_ids: packTokenIds(LONG) } })
  worker.end(firstId, 2)
  t.strictSame(getPrompt(await first), LONG)
  const second = readEvents(backend, createRequest('a'))
  const { request_id: id, prompt_base: base } = await worker.next('completion_request')
  t.equal(base, firstId, 'the proxy names the request whose prompt it has')
  return { worker, id, response: second, backend }
}

t.test('a worker may report a prompt as an extension of the one that the proxy has', async (t) => {
  const { worker, id, response } = await sendSecondRequest(t)
  const start = { engine: 'e', prompt_shared: 2_999, prompt_token_ids: packTokenIds([8, 9]) }
  worker.chunk(id, 1, 'hi', { start })
  worker.end(id, 2)
  t.strictSame(getPrompt(await response), Int32Array.of(...LONG.subarray(0, 2_999), 8, 9))
})

t.test('a worker without this feature reports it completely', async (t) => {
  const { worker, id, response } = await sendSecondRequest(t)
  worker.chunk(id, 1, 'hi', { start: { engine: 'e', prompt_token_ids: packTokenIds(LONGER) } })
  worker.end(id, 2)
  t.strictSame(getPrompt(await response), LONGER)
})

t.test('a worker that refers beyond the end of a prompt fails its request', async (t) => {
  const { worker, id, response } = await sendSecondRequest(t)
  worker.chunk(id, 1, 'hi', { start: { engine: 'e', prompt_shared: 3_001, prompt_token_ids: '' } })
  await t.rejects(response, { code: 'engine_failed' })
})

t.test('a worker that refers to an unreported prompt fails its request', async (t) => {
  const { url, backend } = await relayServerFor(t)
  const worker = await RawWorker.hello(url)
  const response = readEvents(backend, createRequest('a'))
  const { request_id: id } = await worker.next('completion_request')
  worker.chunk(id, 1, 'hi', { start: { engine: 'e', prompt_shared: 1, prompt_token_ids: '' } })
  await t.rejects(response, { code: 'engine_failed' })
})

t.test("a request that contains its prompt's ids is its own base", async (t) => {
  const { worker, id, response, backend } = await sendSecondRequest(t)
  worker.chunk(id, 1, 'hi')
  worker.end(id, 2)
  await response
  const inTokenMode = readEvents(backend, createRequest('a', { promptTokenIds: new PromptIds(LONGER) }))
  const { request_id: ownId, prompt_base: base } = await worker.next('completion_request')
  t.equal(base, ownId)
  worker.chunk(ownId, 1, 'hi', { start: { engine: 'e', prompt_shared: LONGER.length, prompt_token_ids: '' } })
  worker.end(ownId, 2)
  t.strictSame(getPrompt(await inTokenMode), LONGER)
})

/** Sends a second request to a worker in token mode, with only the added ids. */
async function sendExtension(t: Test) {
  const { url, backend } = await relayServerFor(t)
  const hello = { capabilities: ['resume', 'token_ids', 'prompt_shared'] }
  const worker = await RawWorker.hello(url, hello)
  const first = readEvents(backend, createRequest('a', { promptTokenIds: new PromptIds(LONG) }))
  const { request_id: firstId, prompt_base: own, messages } = await worker.next('completion_request')
  t.equal(own, firstId)
  t.strictSame(messages, [], 'only ids')
  worker.chunk(firstId, 1, 'hi', { start: { engine: 'e', prompt_shared: LONG.length, prompt_token_ids: '' } })
  worker.end(firstId, 2)
  await first
  await worker.next('completion_ack')
  const response = readEvents(backend, createRequest('a', { promptTokenIds: new PromptIds(LONGER) }))
  const frame = await worker.next('completion_request')
  t.match(frame, { prompt_base: firstId, prompt_shared: LONG.length, messages: { length: 0 } })
  t.equal(frame.prompt_token_ids, packTokenIds(LONGER.subarray(LONG.length)))
  return { url, hello, worker, id: frame.request_id, response }
}

const createForgottenFrame = (id: unknown) => ({
  type: 'completion_response',
  request_id: id,
  seq: 1,
  finish_reason: null,
  error: { code: 'prompt_forgotten', message: 'why', status: 409 },
})

/** Waits for the same request again, with its complete prompt. */
async function expectCompletePrompt(t: Test, worker: RawWorker, id: unknown) {
  const frame = await worker.next('completion_request')
  t.match(frame, { request_id: id, prompt_base: id, prompt_token_ids: packTokenIds(LONGER) })
  t.notOk('prompt_shared' in frame)
}

function endWithSharedPrompt(worker: RawWorker, id: unknown): void {
  worker.chunk(id, 1, 'hi', { start: { engine: 'e', prompt_shared: LONGER.length, prompt_token_ids: '' } })
  worker.end(id, 2)
}

t.test('a prompt in token mode is sent as an extension of the previous one', async (t) => {
  const { worker, id, response } = await sendExtension(t)
  endWithSharedPrompt(worker, id)
  t.strictSame(getPrompt(await response), LONGER)
})

t.test('a worker that has evicted the prompt gets all of it, once', async (t) => {
  const { worker, id, response } = await sendExtension(t)
  worker.send(createForgottenFrame(id))
  t.match(
    await worker.next('completion_ack'),
    { request_id: id, seq: 1 },
    'the first attempt has ended there',
  )
  await expectCompletePrompt(t, worker, id)
  endWithSharedPrompt(worker, id)
  t.strictSame(getPrompt(await response), LONGER)
  const second = await sendExtension(t)
  second.worker.send(createForgottenFrame(second.id))
  await expectCompletePrompt(t, second.worker, second.id)
  second.worker.send(createForgottenFrame(second.id))
  await t.rejects(second.response, { code: 'engine_failed' }, 'and is not requested endlessly')
})

t.test(
  'a prompt that was lost in transit is sent completely to the worker after its reconnect',
  async (t) => {
    const { url, hello, worker, id, response } = await sendExtension(t)
    worker.socket.terminate()
    await worker.closed
    const back = await RawWorker.hello(url, hello)
    await expectCompletePrompt(t, back, id)
    endWithSharedPrompt(back, id)
    t.strictSame(getPrompt(await response), LONGER)
  },
)

t.test('a worker that reconnects and reports the eviction again is sent everything again', async (t) => {
  const { url, hello, worker, id, response } = await sendExtension(t)
  worker.send(createForgottenFrame(id))
  await expectCompletePrompt(t, worker, id)
  worker.socket.terminate()
  await worker.closed
  const back = await RawWorker.hello(url, { ...hello, requests: [id] })
  t.match(await back.next('worker_hello_ack'), { requests: [{ request_id: id, received: 0 }] })
  back.send(createForgottenFrame(id))
  await expectCompletePrompt(t, back, id)
  endWithSharedPrompt(back, id)
  t.strictSame(getPrompt(await response), LONGER)
})

t.test('whatever a worker of this version has cached, its engine gets the prompt', async (t) => {
  const { url, backend } = await relayServerFor(t)
  const requests: GenerationRequest[] = []
  const engine = new ScriptedBackend((request) => {
    requests.push(request)
    const { promptTokenIds } = request as { promptTokenIds: PromptIds }
    const [, ...rest] = completeResponse()
    return respond([{ type: 'start', engine: 'e', promptTokenIds }, ...rest])
  })
  const member = { name: 'e', kind: 'scripted', healthy: true, inFlight: 0, models: [], capacity: 8 }
  engine.getStatus = () => ({ members: [{ ...member, takesTokenIds: true }], queued: 0 })
  await once(startWorkerClient(t, url, 'w', engine), 'connected')
  const prompts = [LONG, LONGER, LONG.with(2_999, 1), Int32Array.of(5), LONGER, LONG.subarray(7)]
  // Enough other prompts that the worker evicts its own, and one that continues the evicted one.
  const huge = Array.from({ length: 34 }, (_, index) => new Int32Array(1_000_000).fill(index))
  for (const each of [...prompts, ...huge, LONGER]) {
    const events = await readEvents(backend, createRequest('a', { promptTokenIds: new PromptIds(each) }))
    t.ok(getPrompt(events)!.length === each.length)
    const last = requests.at(-1) as { promptTokenIds: PromptIds }
    t.ok(Buffer.from(last.promptTokenIds.toArray().buffer).equals(Buffer.from(Int32Array.from(each).buffer)))
  }
})
