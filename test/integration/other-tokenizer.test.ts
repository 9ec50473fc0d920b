/**
 * Token mode in front of an engine with another tokenizer: its ids would mean another text, although every turn would
 * look exact.
 */
import t, { type Test } from 'tap'
import { loadEmbeddedTokenizer } from '../../src/embedded/engine/embedded-model.ts'
import { startEngine } from '../helpers/engine.ts'
import { type FakeVllmOptions, startFakeVllm } from '../helpers/fake-vllm.ts'
import { createListingLogger } from '../helpers/listing-logger.ts'
import { startProxy } from '../helpers/proxy.ts'
import { joinWorker } from '../helpers/relay-rig.ts'
import { until } from '../helpers/until.ts'

const tokenizer = loadEmbeddedTokenizer()
/** The same tokens with other ids. */
const shift = (text: string) => tokenizer.encode(text).map((id) => id + 1)
const OTHER = /the tokenizer of llama is not that of --tokenizer embedded: id 1 of a text is \d+ here/

async function startOther(t: Test, textIds?: FakeVllmOptions['textIds'], more: FakeVllmOptions = {}) {
  const engine = await startFakeVllm({ model: 'llama', ...(textIds && { textIds }), ...more })
  t.teardown(() => engine.close())
  return engine
}

t.test('a proxy whose engines all have another one does not start, and reports both names', async (t) => {
  const { url } = await startOther(t, shift)
  await t.rejects(startProxy(t, { engineUrls: [url], tokenizer: 'embedded' }), {
    code: 'config_invalid',
    message: OTHER,
  })
})

t.test(
  'beside a matching engine the other one gets no requests, and its registration is rejected',
  async (t) => {
    const right = await startEngine(t)
    const wrong = await startOther(t, shift)
    const proxy = await startProxy(t, { engineUrls: [wrong.url, right.url], tokenizer: 'embedded' })
    const { engines } = await proxy.get('/health')
    t.match(engines, [
      { name: wrong.url, healthy: false, tokenizer: 'other', error: OTHER },
      { name: right.url, healthy: true, tokenizer: 'same' },
    ])
    const body = { model: engines[1].models[0], messages: [{ role: 'user', content: 'hi' }], max_tokens: 2 }
    for (const session of ['a', 'b', 'c'])
      t.ok((await proxy.post(`/${session}/v1/chat/completions`, body)).choices)
    t.same(
      wrong.requests.filter(({ path }) => path.startsWith('/v1/') && path !== '/v1/models'),
      [],
    )
    const late = await startOther(t, shift)
    const rejected = await proxy.post('/admin/workers', { url: late.url })
    t.match(rejected, { code: 'unsupported', detail: OTHER })
    const silent = await startOther(t, undefined)
    t.match(await proxy.post('/admin/workers', { url: silent.url }), { worker_id: String })
    t.match((await proxy.get('/health')).engines.at(-1), { name: silent.url, tokenizer: 'unknown' })
  },
)

t.test(
  'a worker with such an engine gets no requests, and the error and /health give the reason',
  async (t) => {
    const right = await startEngine(t)
    const wrong = await startOther(t, shift)
    const proxy = await startProxy(t, { mode: 'relay', tokenizer: 'embedded', queueWaitMs: 100 })
    joinWorker(t, { proxyUrls: [proxy.url], engineUrls: [wrong.url], workerId: 'wrong' })
    const workers = async () => (await proxy.get('/health')).workers
    await until(async () => (await workers())[0]?.tokenizer === 'other')
    t.match(await workers(), [{ name: 'wrong', healthy: false, error: OTHER }])
    const body = { model: 'llama', messages: [{ role: 'user', content: 'hi' }], max_tokens: 2 }
    const rejected = await proxy.post('/a/v1/chat/completions', body)
    t.match(rejected, { error: { code: 'no_worker', message: OTHER } })
    t.match(await proxy.get('/admin/workers'), [{ worker_id: 'wrong', healthy: false, error: OTHER }])
    t.match(await proxy.get('/a/v1/models'), { data: { length: 0 } })
    joinWorker(t, { proxyUrls: [proxy.url], engineUrls: [right.url], workerId: 'right' })
    await until(async () => (await workers())[1]?.tokenizer === 'same')
    const model = (await workers())[1].models[0]
    t.ok((await proxy.post('/a/v1/chat/completions', { ...body, model })).choices)
  },
)

t.test('an engine without /tokenize is checked by its texts of ids', async (t) => {
  const wrong = await startOther(t, undefined, { idText: (id) => tokenizer.decode([id + 1]) })
  await t.rejects(startProxy(t, { engineUrls: [wrong.url], tokenizer: 'embedded' }), {
    code: 'config_invalid',
    message:
      /the tokenizer of llama is not that of --tokenizer embedded: id \d+ reads ".*" here and ".*" there/,
  })
  const right = await startOther(t, undefined, { idText: (id) => tokenizer.decode([id]) })
  const proxy = await startProxy(t, { engineUrls: [right.url], tokenizer: 'embedded' })
  t.match((await proxy.get('/health')).engines, [{ healthy: true, tokenizer: 'same' }])
  const readings = right.requests.filter(({ body }) => body?.prompt_logprobs === 0)
  t.equal(readings.length, 1, 'requested once')
})

t.test(
  "a prompt that the engine's template renders differently is a warning in /health and in the log, also behind a worker",
  async (t) => {
    const { url: own } = await startEngine(t)
    const chatIds = async (chat: object) => {
      const request = {
        method: 'POST',
        headers: { 'content-type': 'application/json' },
        body: JSON.stringify(chat),
      }
      return ((await (await fetch(`${own}/tokenize`, request)).json()) as { tokens: number[] }).tokens
    }
    const messages = [{ role: 'user', content: 'Say hello.' }]
    const plain = await chatIds({ messages })
    const engine = await startOther(t, (text) => tokenizer.encode(text), {
      chatIds: ({ tools }) => (tools ? plain.with(2, 1) : plain),
    })
    const { logger, lines } = createListingLogger()
    const proxy = await startProxy(t, { engineUrls: [engine.url], tokenizer: 'embedded' }, logger)
    const message = new RegExp(
      `^prompt mismatch for a chat with a tool: the engine's chat endpoint renders ${plain.length} tokens, --tokenizer ` +
        'embedded renders \\d+; first difference at position \\d+ \\(engine: \\d+, tokenizer: \\d+\\)$',
    )
    t.match((await proxy.get('/health')).engines, [{ healthy: true, tokenizer: 'same', warning: message }])
    t.match(
      lines.filter(({ event }) => event === 'engine_warning'),
      { length: 1, 0: { engine: engine.url, warning: message } },
    )
    const relay = await startProxy(t, { mode: 'relay', tokenizer: 'embedded' }, logger)
    joinWorker(t, { proxyUrls: [relay.url], engineUrls: [engine.url], workerId: 'w' })
    const [worker] = await until(async () => {
      const { workers } = await relay.get('/health')
      return workers[0]?.warning && workers
    })
    const behind = `${engine.url}: prompt mismatch for a chat with a tool`
    t.match(worker, { healthy: true, tokenizer: 'same', warning: behind })
    t.match(
      lines.filter(({ event }) => event === 'worker_warning'),
      { length: 1, 0: { worker_id: 'w', warning: behind } },
    )
  },
)
