/** `llm-proxy verify` as a program, on turns that a proxy recorded with the embedded engine. */
import OpenAI from 'openai'
import t, { type Test } from 'tap'
import { packTokenData } from '../../src/protocol/token-data/token-data.ts'
import type { ServeConfig } from '../../src/proxy/config/options/serve.ts'
import type { TurnStore } from '../../src/proxy/store/port/turn-store.ts'
import { openSqliteStore } from '../../src/proxy/store/sqlite/open.ts'
import { HalvedEngine, startEngine } from '../helpers/engine.ts'
import { KEYS } from '../helpers/keys.ts'
import { runLlmProxy } from '../helpers/llm-proxy.ts'
import { startProxy, type TestProxy } from '../helpers/proxy.ts'
import { createRandom, startScoringEngine, TableModel } from '../helpers/scoring-engines.ts'
import { recordTurn } from '../helpers/sessions-api.ts'

/** Records three turns: one is hot, one continues it with top_p, one is greedy. */
async function record(proxy: TestProxy, sessionId = 's') {
  const openai = new OpenAI({ baseURL: proxy.baseUrl(sessionId), apiKey: KEYS.adminKeys[0]!, maxRetries: 0 })
  const { create } = openai.chat.completions
  const body = create.bind(openai.chat.completions)
  const messages = [{ role: 'user' as const, content: 'Tell me about otters.' }]
  const first = await body({ model: 'embedded', messages, seed: 3, temperature: 1.4, max_tokens: 30 })
  const conversation = [
    ...messages,
    first.choices[0]!.message,
    { role: 'user' as const, content: 'And seals?' },
  ]
  await body({ model: 'embedded', messages: conversation, seed: 4, max_tokens: 30, top_p: 0.9 })
  await body({ model: 'embedded', messages: conversation, temperature: 0, max_tokens: 30 })
}

async function startRecorded(t: Test, config: Partial<ServeConfig> = {}) {
  const engine = await startEngine(t, { weightVersion: '7' })
  const db = `${t.testdir({})}/proxy.db`
  const proxy = await startProxy(t, { engineUrls: [engine.url], db, ...config })
  await record(proxy)
  return { engine, proxy, db }
}

const verify = (...args: string[]) => runLlmProxy(['verify', ...args])

t.test('a database of the embedded engine: the difference is 0, over HTTP and in the program', async (t) => {
  const { engine, db } = await startRecorded(t)
  for (const args of [['--engine-url', engine.url], ['--any-weights']]) {
    const { code, stdout, stderr } = await verify('--db', db, '--json', '--greedy', ...args)
    t.equal(code, 0, stderr)
    const report = JSON.parse(stdout)
    t.match(report, {
      verdict: 'same',
      compared: 3,
      differing: 0,
      control: { caught: true },
      overall: { mean_difference: 0, max_difference: 0, ratio_outside: 0, ratio: { min: 1, max: 1 } },
    })
    t.strictSame(report.skipped, {})
    t.equal(report.turns.length, 3)
    t.same(
      report.turns.map((turn: { greedy?: { same: boolean } }) => turn.greedy?.same),
      [undefined, undefined, true],
    )
  }
})

t.test('a running proxy with keys is verified as well, for some of its sessions', async (t) => {
  const { engine, proxy } = await startRecorded(t, { ...KEYS, tokenizer: 'embedded' })
  await record(proxy, 'other')
  const key = ['--admin-key', KEYS.adminKeys[0]!]
  const args = ['--url', proxy.url, ...key, '--engine-url', engine.url]
  const { code, stdout } = await verify(...args, 'other')
  t.equal(code, 0, stdout)
  t.match(
    stdout,
    /3 turns compared, 0 differ\n[\s\S]*control: the engine detected a prompt with one changed token\nsame\n$/,
  )
  t.equal(JSON.parse((await verify(...args, '--json', '--limit', '4')).stdout).compared, 4)
  const unknown = await verify(...args, 'nobody')
  t.equal(unknown.code, 1)
})

t.test('wrongly recorded turns: exit code 3, with the first difference', async (t) => {
  const db = `${t.testdir({})}/proxy.db`
  const proxy = await startProxy(t, { engineUrls: [(await startEngine(t, new HalvedEngine())).url], db })
  await record(proxy)
  const { code, stdout } = await verify('--db', db)
  t.equal(code, 3, stdout)
  t.match(stdout, /3 turns compared, 3 differ\n\nSESSION +TURN +TOKENS +MEAN +MAX +FIRST/)
  t.match(stdout, /differs\n$/)
})

t.test('other weights are not a fault: nothing is compared or proved; exit code 4', async (t) => {
  const { engine, db } = await startRecorded(t)
  engine.engine.weightVersion = '8'
  const { code, stdout } = await verify('--db', db, '--engine-url', engine.url)
  t.equal(code, 4)
  t.match(stdout, /skipped: 3 other_weights\nnothing was compared\nvoid\n$/)
  t.equal((await verify('--db', db, '--engine-url', engine.url, '--any-weights')).code, 0)
})

t.test('an engine that does not respond, and one that cannot score, fail the command', async (t) => {
  const db = `${t.testdir({})}/none.db`
  await startProxy(t, { db })
  const { code, stderr } = await verify('--db', db, '--engine-url', 'http://127.0.0.1:1')
  t.equal(code, 1)
  t.match(stderr, /the engine does not respond/)
})

const createSession = (store: TurnStore) =>
  store.createSession({
    sessionId: 's',
    createdAtMs: 1,
    ttlMs: null,
    metadata: {},
    samplingParams: {},
    trustAgent: false,
  })

t.test('turns with images are skipped', async (t) => {
  const db = `${t.testdir({})}/images.db`
  const engine = await startEngine(t)
  const store = await openSqliteStore({ path: db, durability: 'process' })
  await createSession(store)
  const part = { type: 'image_url', image_url: { url: 'data:image/png;base64,AA==' } }
  await recordTurn(store, 's', 0, {
    model: 'embedded',
    requestMessages: [JSON.stringify({ role: 'user', content: [part] })],
  })
  await store.close()
  const { code, stdout, stderr } = await verify('--db', db, '--engine-url', engine.url, '--json')
  t.equal(code, 4, stderr)
  t.match(JSON.parse(stdout), { compared: 0, skipped: { images: 1 } })
})

t.test('recorded masks are read with their turns, and a missing one is reported', async (t) => {
  const db = `${t.testdir({})}/masks.db`
  const model = new TableModel(1)
  const engine = await startScoringEngine(t, 'vllm', { policy: model })
  const store = await openSqliteStore({ path: db, durability: 'process' })
  await createSession(store)
  for (const index of [0, 1, 2]) {
    const prompt = [3, 1, 4, 1, 5, 9, 2, 6].map((id) => id + index)
    const { ids, raw, filtered, masks } = model.sample(prompt, 40, { topP: 0.6, random: createRandom(index) })
    const reported = index === 2 ? masks.map(() => []) : masks
    const details = {
      sampling_mask: { counts: reported.map(({ length }) => length), ids: reported.flat() },
      sampling_logprobs: filtered,
    }
    await recordTurn(store, 's', index, {
      model: 'policy',
      params: '{"model":"policy","top_p":0.6,"temperature":1}',
      promptTokenIds: Int32Array.from(prompt),
      completionTokenIds: Int32Array.from(ids),
      completionLogprobs: Float64Array.from(raw),
      details: packTokenData(details),
    })
  }
  await store.close()
  const args = ['--db', db, '--engine-url', engine.url, '--engine-kind', 'vllm', '--any-weights', '--json']
  const { code, stdout, stderr } = await verify(...args)
  t.equal(code, 3, stderr)
  const { turns } = JSON.parse(stdout)
  const byIndex = (index: number) => turns.find((turn: { index: number }) => turn.index === index)
  for (const index of [0, 1]) t.match(byIndex(index), { verdict: 'same', masked: { tokens: 40 } })
  t.match(byIndex(2), { verdict: 'differs', hint: /a mask is missing/, comparison: { ratio_outside: 0 } })
})
