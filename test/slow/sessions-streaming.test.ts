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

/** The head of an answer whose body nobody has read yet. */
async function open(url: string): Promise<IncomingMessage> {
  const [response] = await once(get(url, { agent: false }), 'response')
  return response as IncomingMessage
}

t.test('200 turns of 100,000 tokens go out in little memory', async (t) => {
  const { url } = await startWith(t, new LongSession(TURNS, PROMPT_TOKENS))
  const response = await open(`${url}/sessions/s`)
  const before = memoryInUse()
  let [bytes, nextLookAt, peak, tail] = [0, 0, 0, '']
  for await (const chunk of response) {
    bytes += (chunk as Buffer).length
    tail = (tail + String(chunk)).slice(-100)
    if (bytes < nextLookAt) continue
    nextLookAt += 10 * MB
    peak = Math.max(peak, memoryInUse() - before)
  }
  t.ok(bytes > 100 * MB, `${bytes} bytes came`)
  t.match(
    tail,
    /\}\],"trace_count":200,"prompts":\{\},"changed_calls":\{\},"aborted_turns":0\}$/,
    'the answer is whole',
  )
  t.ok(peak < 64 * MB, `${Math.round(peak / MB)} MB were in use at the peak`)
})

t.test('turns are read no faster than a slow client takes them', async (t) => {
  const session = new LongSession(TURNS, PROMPT_TOKENS)
  const { url } = await startWith(t, session)
  const response = await open(`${url}/sessions/s`)
  response.pause()
  const stalledAt = await untilSettled(() => session.read)
  t.ok(stalledAt > 0 && stalledAt < TURNS / 4, `${stalledAt} turns were read ahead of the client`)
  response.resume()
  await once(response, 'end')
  t.equal(session.read, TURNS)
})

t.test('a client that leaves in the middle of an answer ends the reading', async (t) => {
  const session = new LongSession(TURNS, PROMPT_TOKENS)
  const { url, call } = await startWith(t, session)
  const response = await open(`${url}/sessions/s`)
  await once(response, 'data')
  response.destroy()
  await session.left
  t.ok(session.read < TURNS, `${session.read} turns were read`)
  t.equal((await call('GET', '/sessions')).status, 200, 'the server goes on')
})

t.test(
  'a store that fails in the middle of an answer breaks it off, so that nobody takes it for whole',
  async (t) => {
    const { url, call } = await startWith(t, new LongSession(1, 1), async function* () {
      for await (const turn of new LongSession(2, PROMPT_TOKENS)) yield turn as never
      throw new Error('the disk is gone')
    })
    const response = await fetch(`${url}/sessions/s`)
    t.equal(response.status, 200)
    await t.rejects(response.text())
    t.equal((await call('GET', '/sessions')).status, 200, 'the server goes on')
  },
)

t.test('a store that fails before the answer began is an error', async (t) => {
  const { call } = await startWith(t, new LongSession(1, 1), async function* () {
    yield* []
    throw new Error('the disk is gone')
  })
  t.equal((await call('GET', '/sessions/s/trajectories')).status, 500)
})

/** Bytes that are still referred to from somewhere. */
function memoryInUse(): number {
  collectGarbage()
  const { heapUsed, external } = process.memoryUsage()
  return heapUsed + external
}

/** Sockets do not tell that they are full. @returns the value once it has stood still for a while */
async function untilSettled(read: () => number): Promise<number> {
  let value = -1
  while (value !== read()) {
    value = read()
    await sleep(200)
  }
  return value
}
