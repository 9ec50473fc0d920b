import t, { type Test } from 'tap'
import { killChild, waitForOutput } from '../helpers/children.ts'
import { CountingBackend, countedText } from '../helpers/counting-backend.ts'
import { Forwarder } from '../helpers/forwarder.ts'
import { startLlmProxy } from '../helpers/llm-proxy.ts'
import type { TestProxy } from '../helpers/proxy.ts'
import {
  createAgent,
  getTurns,
  startWorkerClient,
  startWorkerProcess,
  streamResponse,
  untilWorkers,
} from '../helpers/relay-rig.ts'
import { until } from '../helpers/until.ts'

/** Responses that do not end before the test does. */
const COUNTING = { chunks: 1_000_000, chunkMs: 10 }

/** Starts `llm-proxy serve --mode relay` as a process, and waits until it listens. */
async function relayProcess(t: Test, db: string) {
  const args = ['serve', '--mode', 'relay', '--port', '0', '--db', db, '--log-level', 'error']
  const process = startLlmProxy(args)
  t.teardown(() => killChild(process))
  const [url] = await waitForOutput(process.stdout, /http:\/\/[\d.]+:\d+/)
  return {
    process,
    url,
    port: Number(new URL(url).port),
    baseUrl: (sessionId: string) => `${url}/${sessionId}/v1`,
    get: (async (path) => (await fetch(url + path)).json()) satisfies TestProxy['get'],
  }
}

/** Waits until a session's turn, open or not, is in the store. */
async function untilRecorded(proxy: Pick<TestProxy, 'get'>, sessionId: string): Promise<void> {
  await until(async () => (await proxy.get(`/sessions/${sessionId}`)).turns?.length === 1)
}

t.test('a proxy is killed with twenty workers, and restarted', async (t) => {
  const db = `${t.testdir({})}/proxy.db`
  const first = await relayProcess(t, db)
  let { port } = first
  const forwarder = await Forwarder.to(t, () => port)
  const dial = `http://127.0.0.1:${forwarder.port}`
  const engine = new CountingBackend(COUNTING)
  const ids = Array.from({ length: 20 }, (_, i) => `w${i}`)
  for (const id of ids.slice(0, 3)) startWorkerProcess(t, dial, id, COUNTING)
  const delays = new Set<number>()
  const drawDelay = () => {
    const delay = Math.random()
    delays.add(delay)
    return delay
  }
  for (const id of ids.slice(3)) startWorkerClient(t, dial, id, engine, drawDelay)
  await untilWorkers(first, ...ids)

  const short = await streamResponse(createAgent(first, 'short'), { max_tokens: 3 })
  let started = 0
  const inFlight = ids.map((id) => {
    let seen = false
    return streamResponse(createAgent(first, id), {}, () => {
      started += seen ? 0 : 1
      seen = true
    })
  })
  const full = t.rejects(
    createAgent(first, 'whole').chat.completions.create({
      model: 'counting',
      messages: [{ role: 'user', content: 'count' }],
    }),
    'a request that is not streamed',
  )
  await until(() => started === ids.length)
  // A turn may reach its agent slightly before the store: kill only after all are stored.
  for (const id of [...ids, 'whole']) await untilRecorded(first, id)
  delays.clear()
  first.process.kill('SIGKILL')
  await full
  const seen = await Promise.all(inFlight)
  const second = await relayProcess(t, db)
  port = second.port
  await untilWorkers(second, ...ids)
  // The engines of the first proxy's requests are released.
  await until(() => engine.running === 0)

  t.ok(
    seen.every(({ error }) => error !== undefined),
    'no stream ends as if it were complete',
  )
  t.ok(delays.size >= ids.length - 3, 'each worker has drawn the delay of its reconnection')
  t.same(short, { text: countedText(3), error: undefined })
  t.match(await getTurns(second, 'short'), [{ status: 'completed', completion_text: countedText(3) }])
  for (const id of [...ids, 'whole'])
    t.match(
      await getTurns(second, id),
      [{ status: 'interrupted' }],
      'the restarted proxy reports the interrupted turns',
    )
  t.same(
    await Promise.all(ids.map((id) => streamResponse(createAgent(second, id), { max_tokens: 5 }))),
    ids.map(() => ({ text: countedText(5), error: undefined })),
    'the same sessions are served again',
  )
  for (const id of ids)
    t.match(await getTurns(second, id), [{ status: 'interrupted' }, { status: 'completed' }])
})
