import { once } from 'node:events'
import { get, type IncomingMessage } from 'node:http'
import { setTimeout as sleep } from 'node:timers/promises'
import { setFlagsFromString } from 'node:v8'
import { runInNewContext } from 'node:vm'
import t, { type Test } from 'tap'
import { LongSession } from '../helpers/long-session.ts'
import { startSessionsApi } from '../helpers/sessions-api.ts'
import { openMemoryStore } from '../helpers/store-in-process.ts'

const TURNS = 200
const PROMPT_TOKENS = 100_000
const MB = 1024 * 1024

setFlagsFromString('--expose-gc')
const collectGarbage: () => void = runInNewContext('gc')

async function startWith(t: Test, session: LongSession, read = () => session as AsyncIterable<never>) {
  const store = await openMemoryStore()
  store.readTurns = read
  store.readSteps = read
  const api = await startSessionsApi(t, store)
  await api.call('POST', '/sessions/s')
  return api
}

/** Returns a response whose body has not been read. */
async function open(url: string): Promise<IncomingMessage> {
  const [response] = await once(get(url, { agent: false }), 'response')
  return response as IncomingMessage
}

t.test('200 turns of 100,000 tokens are sent with little memory', async (t) => {
  const { url } = await startWith(t, new LongSession(TURNS, PROMPT_TOKENS))
  const response = await open(`${url}/sessions/s`)
  const before = measureMemory()
  let [bytes, nextSampleAt, peak, tail] = [0, 0, 0, '']
  for await (const chunk of response) {
    bytes += (chunk as Buffer).length
    tail = (tail + String(chunk)).slice(-100)
    if (bytes < nextSampleAt) continue
    nextSampleAt += 10 * MB
    peak = Math.max(peak, measureMemory() - before)
  }
  t.ok(bytes > 100 * MB, `${bytes} bytes were received`)
  t.match(
    tail,
    /\}\],"trace_count":200,"prompts":\{\},"changed_calls":\{\},"aborted_turns":0\}$/,
    'the response is complete',
  )
  t.ok(peak < 64 * MB, `${Math.round(peak / MB)} MB were in use at the peak`)
})

t.test('turns are read no faster than a slow client receives them', async (t) => {
  const session = new LongSession(TURNS, PROMPT_TOKENS)
  const { url } = await startWith(t, session)
  const response = await open(`${url}/sessions/s`)
  response.pause()
  const stalledAt = await untilSettled(() => session.readCount)
  t.ok(stalledAt > 0 && stalledAt < TURNS / 4, `${stalledAt} turns were read ahead of the client`)
  response.resume()
  await once(response, 'end')
  t.equal(session.readCount, TURNS)
})

t.test('a client that disconnects during a response ends the read', async (t) => {
  const session = new LongSession(TURNS, PROMPT_TOKENS)
  const { url, call } = await startWith(t, session)
  const response = await open(`${url}/sessions/s`)
  await once(response, 'data')
  response.destroy()
  await session.readerStopped
  t.ok(session.readCount < TURNS, `${session.readCount} turns were read`)
  t.equal((await call('GET', '/sessions')).status, 200, 'the server continues')
})

t.test(
  'a store that fails during a response breaks the connection, so that the response is not taken as complete',
  async (t) => {
    const { url, call } = await startWith(t, new LongSession(1, 1), async function* () {
      for await (const turn of new LongSession(2, PROMPT_TOKENS)) yield turn as never
      throw new Error('the disk is gone')
    })
    const response = await fetch(`${url}/sessions/s`)
    t.equal(response.status, 200)
    await t.rejects(response.text())
    t.equal((await call('GET', '/sessions')).status, 200, 'the server continues')
  },
)

t.test('a store that fails before the response has started is an error', async (t) => {
  const { call } = await startWith(t, new LongSession(1, 1), async function* () {
    yield* []
    throw new Error('the disk is gone')
  })
  t.equal((await call('GET', '/sessions/s/trajectories')).status, 500)
})

/** Returns the number of bytes that are still referenced. */
function measureMemory(): number {
  collectGarbage()
  const { heapUsed, external } = process.memoryUsage()
  return heapUsed + external
}

/** Sockets do not report that they are full. @returns the value once it no longer changes */
async function untilSettled(read: () => number): Promise<number> {
  let value = -1
  while (value !== read()) {
    value = read()
    await sleep(200)
  }
  return value
}
