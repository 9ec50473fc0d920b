/**
 * A proxy is killed while workers serve its calls, and is started again: a worker delivers what it has for an agent that
 * tries again, and the call is sampled, recorded and trained once.
 */
import OpenAI from 'openai'
import t, { type Test } from 'tap'
import { createVllmClient } from '../../src/proxy/engines/clients/vllm/client.ts'
import { createLocalBackend } from '../../src/proxy/engines/dispatch/local-backend.ts'
import { ended, said } from '../helpers/children.ts'
import { CountingBackend, countedText } from '../helpers/counting-backend.ts'
import { startEngine } from '../helpers/engine.ts'
import { freePort } from '../helpers/free-port.ts'
import { startLlmProxy } from '../helpers/llm-proxy.ts'
import { untilWorkers, workerFor } from '../helpers/relay-rig.ts'
import { until } from '../helpers/until.ts'

/** A proxy that can be killed and started again where it was. */
class Restartable {
  readonly url: string
  readonly #args: readonly string[]
  #child: ReturnType<typeof startLlmProxy> | undefined
  #isUp = Promise.withResolvers<void>()

  private constructor(t: Test, port: number, more: readonly string[]) {
    this.url = `http://127.0.0.1:${port}`
    const db = `${t.testdir({})}/proxy.db`
    const fixed = ['--mode', 'relay', '--port', `${port}`, '--db', db, '--log-level', 'error']
    // A slow machine must not be what ends a call here.
    this.#args = ['serve', ...fixed, '--worker-grace', '5m', '--retry-grace', '5m', ...more]
    t.teardown(() => this.#child?.kill('SIGKILL'))
  }

  static async start(t: Test, ...more: string[]): Promise<Restartable> {
    const proxy = new Restartable(t, await freePort(), more)
    await proxy.start()
    return proxy
  }

  async start(): Promise<void> {
    this.#child = startLlmProxy([...this.#args])
    await said(this.#child.stdout, /http:\/\/[\d.]+:\d+/)
    this.#isUp.resolve()
  }

  async kill(): Promise<void> {
    this.#isUp = Promise.withResolvers()
    this.#child!.kill('SIGKILL')
    await ended(this.#child!)
  }

  // biome-ignore lint/suspicious/noExplicitAny: tests look into answers of any shape
  get = async (path: string): Promise<any> => (await fetch(this.url + path)).json()

  turns = async (sessionId: string) => (await this.get(`/sessions/${sessionId}`)).turns ?? []

  /** An agent whose client tries again once the proxy is back. */
  agent(sessionId: string): OpenAI {
    const waiting: typeof fetch = async (...asked) => {
      await this.#isUp.promise
      return await fetch(...asked)
    }
    const options = { apiKey: 'none', maxRetries: 3, fetch: waiting }
    return new OpenAI({ baseURL: `${this.url}/${sessionId}/v1`, ...options })
  }

  async takeovers(): Promise<number> {
    const text = await (await fetch(`${this.url}/metrics`)).text()
    return Number(/^llm_proxy_takeovers_total (\d+)$/m.exec(text)?.[1])
  }
}

const ask = async (agent: OpenAI) => {
  const messages = [{ role: 'user' as const, content: 'count' }]
  const { choices } = await agent.chat.completions.create({ model: 'counting', messages })
  return choices[0]!.message.content
}

const trainedTokens = async (proxy: Restartable, sessionId: string): Promise<number> => {
  const { trajectories } = await proxy.get(`/sessions/${sessionId}/trajectories`)
  return trajectories
    .flatMap((row: { response_mask: number[] }) => row.response_mask)
    .reduce((sum: number, bit: number) => sum + bit, 0)
}

const PIECES = 20

/** An engine whose answers come when a test says so, and its worker. */
async function gated(t: Test, proxy: Restartable) {
  const { promise: opened, resolve: open } = Promise.withResolvers<void>()
  const engine = new CountingBackend({ pieces: PIECES, opened })
  const worker = workerFor(t, proxy.url, 'w', engine)
  await untilWorkers(proxy, 'w')
  return { engine, worker, open }
}

/** The proxy is killed while the engine works on so many calls, whose turns are open by then. */
async function killAt(proxy: Restartable, engine: CountingBackend, calls: number): Promise<void> {
  await until(() => engine.running === calls)
  await until(async () => (await proxy.turns('s')).length === calls)
  await proxy.kill()
}

/** An agent whose client tries nothing again. */
const impatient = (proxy: Restartable, headers: Record<string, string> = {}) =>
  new OpenAI({ baseURL: `${proxy.url}/s/v1`, apiKey: 'none', maxRetries: 0, defaultHeaders: headers })

t.test(
  'what the worker finishes while the proxy is away is the answer to the retry, sampled once',
  async (t) => {
    const proxy = await Restartable.start(t)
    const { engine, open } = await gated(t, proxy)
    const answer = ask(proxy.agent('s'))
    answer.catch(() => {})
    await killAt(proxy, engine, 1)
    open()
    await until(() => engine.running === 0)
    await proxy.start()
    t.equal(await answer, countedText(PIECES))
    t.equal(engine.requests.length, 1, 'the engine was asked once')
    const turns = await proxy.turns('s')
    t.match(turns, [{ status: 'interrupted' }, { status: 'completed', weight_version_end: '8' }])
    t.equal(turns.length, 2)
    t.equal(await trainedTokens(proxy, 's'), PIECES)
    t.equal(await proxy.takeovers(), 1)
  },
)

t.test('a call that still runs goes on, and streams to the agent that comes back', async (t) => {
  const proxy = await Restartable.start(t)
  const { engine, open } = await gated(t, proxy)
  const answer = ask(proxy.agent('s'))
  answer.catch(() => {})
  await killAt(proxy, engine, 1)
  await proxy.start()
  await until(async () => (await proxy.turns('s')).length === 2)
  open()
  t.equal(await answer, countedText(PIECES))
  t.equal(engine.requests.length, 1)
})

t.test('equal calls that agents made on purpose each get an answer of their own', async (t) => {
  const proxy = await Restartable.start(t)
  const { engine, open } = await gated(t, proxy)
  const answers = [1, 2, 3].map(() => ask(proxy.agent('s')))
  for (const answer of answers) answer.catch(() => {})
  await killAt(proxy, engine, 3)
  open()
  await proxy.start()
  for (const answer of answers) t.equal(await answer, countedText(PIECES))
  const turns = await proxy.turns('s')
  const completed = turns.filter(({ status }: { status: string }) => status === 'completed')
  t.equal(completed.length, 3)
  t.equal(await proxy.takeovers(), 3, 'each answer was handed over')
  t.equal(engine.requests.length, 3, 'and nothing was sampled anew')
})

t.test('a call that nobody comes back for is stopped, and its turn stays what it is', async (t) => {
  const proxy = await Restartable.start(t, '--retry-grace', '500ms')
  const { engine } = await gated(t, proxy)
  const answer = t.rejects(ask(impatient(proxy)))
  await killAt(proxy, engine, 1)
  await answer
  await proxy.start()
  await untilWorkers(proxy, 'w')
  await until(() => engine.running === 0)
  t.match(await proxy.turns('s'), [{ status: 'interrupted' }])
})

t.test(
  'nothing of before is handed over once a trainer has paused: its weights are about to change',
  async (t) => {
    const proxy = await Restartable.start(t)
    const { engine, open } = await gated(t, proxy)
    const answer = t.rejects(ask(impatient(proxy)))
    await killAt(proxy, engine, 1)
    await answer
    await proxy.start()
    await untilWorkers(proxy, 'w')
    await fetch(`${proxy.url}/admin/pause`, { method: 'POST' })
    await until(() => engine.running === 0)
    await fetch(`${proxy.url}/admin/resume`, { method: 'POST' })
    open()
    const retry = impatient(proxy, { 'x-stainless-retry-count': '1' })
    t.equal(await ask(retry), countedText(PIECES))
    t.equal(engine.requests.length, 2, 'it was sampled anew')
    t.equal(await proxy.takeovers(), 0)
  },
)

/** An engine behind a worker of this process, whose answers a test can hold. */
async function holding(t: Test, proxy: Restartable) {
  const engine = await startEngine(t)
  const backend = createLocalBackend({ clients: [createVllmClient({ url: engine.url })] })
  t.teardown(() => backend.close())
  const held = { asked: 0, waiting: 0, gate: Promise.resolve(), hasBegun: false }
  const wait = async () => {
    held.waiting += 1
    await held.gate
    held.waiting -= 1
  }
  const generate = backend.generate.bind(backend)
  backend.generate = async function* (request, signal) {
    held.asked += 1
    if (!held.hasBegun) await wait()
    for await (const [first, ...rest] of generate(request, signal)) {
      yield [first!]
      if (held.hasBegun && first!.type === 'start') await wait()
      if (rest.length > 0) yield rest
    }
  }
  workerFor(t, proxy.url, 'w', backend)
  await untilWorkers(proxy, 'w')
  return held
}

for (const hasBegun of [false, true])
  t.test(`token mode: an answer that had ${hasBegun ? '' : 'not '}begun is of the same ids`, async (t) => {
    const proxy = await Restartable.start(t, '--tokenizer', 'embedded')
    const held = await holding(t, proxy)
    const agent = proxy.agent('s')
    const messages: OpenAI.ChatCompletionMessageParam[] = [{ role: 'user', content: 'Tell me of the sea.' }]
    const asked = { model: 'embedded', messages, max_tokens: 40 }
    const say = async () => (await agent.chat.completions.create(asked)).choices[0]!.message
    messages.push(await say(), { role: 'user', content: 'Go on.' })
    const { promise: gate, resolve: open } = Promise.withResolvers<void>()
    Object.assign(held, { gate, hasBegun })
    const second = say()
    second.catch(() => {})
    await until(() => held.waiting === 1)
    await until(async () => (await proxy.turns('s'))[1]?.status === 'open')
    await proxy.kill()
    await proxy.start()
    await until(async () => (await proxy.turns('s')).length === 3)
    open()
    messages.push(await second, { role: 'user', content: 'And then?' })
    await say()
    t.equal(held.asked, 3, 'nothing was sampled twice')
    t.equal(await proxy.takeovers(), 1)
    const turns = await proxy.turns('s')
    t.match(turns, [
      { status: 'completed' },
      { status: 'interrupted' },
      { status: 'completed', exact: true },
      { status: 'completed', exact: true },
    ])
    const { trajectories } = await proxy.get('/sessions/s/trajectories')
    t.equal(trajectories.length, 1, 'the session is one row')
    const sampled = turns.flatMap(
      (turn: { completion_token_ids: number[] | null }) => turn.completion_token_ids ?? [],
    )
    t.equal(await trainedTokens(proxy, 's'), sampled.length)
  })
