/**
 * A proxy is killed while workers serve its calls, and is started again: a worker delivers what it has for an agent that
 * tries again, and the call is sampled, recorded and trained once.
 */
import OpenAI from 'openai'
import t, { type Test } from 'tap'
import { loadConfig } from '../../src/config/load.ts'
import { WORKER } from '../../src/config/options/worker.ts'
import { startWorker } from '../../src/main.ts'
import { ended, said } from '../helpers/children.ts'
import { CountingBackend, countedText } from '../helpers/counting-backend.ts'
import { startEngine } from '../helpers/engine.ts'
import { freePort } from '../helpers/free-port.ts'
import { startLlmProxy } from '../helpers/llm-proxy.ts'
import { untilWorkers, workerFor } from '../helpers/relay-rig.ts'
import { silentLogger } from '../helpers/silent-logger.ts'
import { until } from '../helpers/until.ts'

/** A proxy that can be killed and started again where it was. */
class Restartable {
  readonly url: string
  readonly #args: readonly string[]
  #child: ReturnType<typeof startLlmProxy> | undefined

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
  }

  async kill(): Promise<void> {
    this.#child!.kill('SIGKILL')
    await ended(this.#child!)
  }

  // biome-ignore lint/suspicious/noExplicitAny: tests look into answers of any shape
  get = async (path: string): Promise<any> => (await fetch(this.url + path)).json()

  turns = async (sessionId: string) => (await this.get(`/sessions/${sessionId}`)).turns ?? []

  /** The agent's client tries again for as long as the proxy takes to be back. */
  agent(sessionId: string): OpenAI {
    return new OpenAI({ baseURL: `${this.url}/${sessionId}/v1`, apiKey: 'none', maxRetries: 30 })
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

t.test(
  'what the worker finishes while the proxy is away is the answer to the retry, sampled once',
  async (t) => {
    const proxy = await Restartable.start(t)
    const { engine, open } = await gated(t, proxy)
    const answer = ask(proxy.agent('s'))
    answer.catch(() => {})
    await until(() => engine.running === 1)
    await until(async () => (await proxy.turns('s')).length === 1)
    await proxy.kill()
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
  await until(() => engine.running === 1)
  await until(async () => (await proxy.turns('s')).length === 1)
  await proxy.kill()
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
  await until(() => engine.running === 3)
  await until(async () => (await proxy.turns('s')).length === 3)
  await proxy.kill()
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
  const agent = new OpenAI({ baseURL: `${proxy.url}/s/v1`, apiKey: 'none', maxRetries: 0 })
  const answer = t.rejects(ask(agent))
  await until(() => engine.running === 1)
  await until(async () => (await proxy.turns('s')).length === 1)
  await proxy.kill()
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
    const agent = new OpenAI({ baseURL: `${proxy.url}/s/v1`, apiKey: 'none', maxRetries: 0 })
    const answer = t.rejects(ask(agent))
    await until(() => engine.running === 1)
    await until(async () => (await proxy.turns('s')).length === 1)
    await proxy.kill()
    await answer
    await proxy.start()
    await untilWorkers(proxy, 'w')
    await fetch(`${proxy.url}/admin/pause`, { method: 'POST' })
    await until(() => engine.running === 0)
    await fetch(`${proxy.url}/admin/resume`, { method: 'POST' })
    open()
    const retry = new OpenAI({
      ...{ baseURL: `${proxy.url}/s/v1`, apiKey: 'none', maxRetries: 0 },
      defaultHeaders: { 'x-stainless-retry-count': '1' },
    })
    t.equal(await ask(retry), countedText(PIECES))
    t.equal(engine.requests.length, 2, 'it was sampled anew')
    t.equal(await proxy.takeovers(), 0)
  },
)

t.test('token mode: the ids on record are those that the engine had before the restart', async (t) => {
  const proxy = await Restartable.start(t, '--tokenizer', 'embedded')
  const engine = await startEngine(t, { tokensPerSecond: 20 })
  const own = { proxyUrls: [proxy.url], engineUrls: [engine.url], workerId: 'w' }
  const worker = startWorker({ ...loadConfig(WORKER, {}, {}), ...own }, { logger: silentLogger })
  t.teardown(() => worker.stop(0))
  await untilWorkers(proxy, 'w')
  const agent = proxy.agent('s')
  const messages: OpenAI.ChatCompletionMessageParam[] = [{ role: 'user', content: 'Tell me of the sea.' }]
  const say = async () =>
    (await agent.chat.completions.create({ model: 'embedded', messages, max_tokens: 40 })).choices[0]!.message
  messages.push(await say(), { role: 'user', content: 'Go on.' })
  const second = say()
  second.catch(() => {})
  await until(async () => (await proxy.turns('s'))[1]?.status === 'open')
  await until(async () => (await proxy.get('/health/workers')).workers[0]?.in_flight !== 0)
  await proxy.kill()
  await proxy.start()
  messages.push(await second, { role: 'user', content: 'And then?' })
  await say()
  const turns = await proxy.turns('s')
  t.match(turns, [
    { status: 'completed' },
    { status: 'interrupted' },
    { status: 'completed', exact: true },
    { status: 'completed', exact: true },
  ])
  t.equal(await proxy.takeovers(), 1)
  const { trajectories } = await proxy.get('/sessions/s/trajectories')
  t.equal(trajectories.length, 1, 'the session is one row')
  const sampled = turns.flatMap(
    (turn: { completion_token_ids: number[] | null }) => turn.completion_token_ids ?? [],
  )
  t.equal(await trainedTokens(proxy, 's'), sampled.length)
})
