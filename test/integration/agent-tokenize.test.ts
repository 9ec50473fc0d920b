/** vLLM's `/tokenize` and `/detokenize` beside an agent's `/v1`. */
import t from 'tap'
import { loadEmbeddedTokenizer } from '../../src/embedded/engine/embedded-model.ts'
import { startEngine } from '../helpers/engine.ts'
import { startProxy } from '../helpers/proxy.ts'
import { modelDirectory, readFixture } from '../unit/proxy/tokens/real-models.ts'

const TOOLS = [{ type: 'function', function: { name: 'add', description: 'Adds.', parameters: {} } }]

t.test('it returns the prompt of the previous request, turn after turn', async (t) => {
  const proxy = await startProxy(t, { tokenizer: 'embedded' })
  for (const base of ['/a/b', '/sessions/other']) {
    const messages: object[] = [{ role: 'user', content: 'What is a lake?' }]
    for (const turn of [0, 1, 2]) {
      const body = { model: 'm', messages, tools: TOOLS, max_tokens: 12 }
      const { choices } = await proxy.post(`${base}/v1/chat/completions`, { ...body, temperature: 1 })
      const {
        tokens,
        count,
        token_strs: strings,
        max_model_len: length,
      } = await proxy.post(`${base}/tokenize`, body)
      const { turns } = await proxy.get(
        `/sessions/${encodeURIComponent(base.replace(/^\/(sessions\/)?/, ''))}`,
      )
      t.same(tokens, turns[turn].prompt_token_ids)
      t.match({ count, strings, length }, { count: tokens.length, strings: null, length: null })
      // The agent's changes to a completion do not change the sampled tokens in the prompt.
      messages.push({ ...choices[0].message, content: choices[0].message.content?.trim() })
      messages.push({ role: 'user', content: 'Go on.' })
    }
  }
})

t.test("texts are tokenized as by the engine's own routes", async (t) => {
  const engine = await startEngine(t)
  const proxy = await startProxy(t, { tokenizer: 'embedded', engineUrls: [engine.url], contextLength: 512 })
  const sendRequest = async (url: string, body: object) =>
    (
      await fetch(url, {
        method: 'POST',
        headers: { 'content-type': 'application/json' },
        body: JSON.stringify(body),
      })
    ).json()
  const messages = [{ role: 'user', content: 'A lake, please: é 湖' }]
  for (const body of [
    { prompt: 'A lake <|im_end|> é' },
    { prompt: '' },
    { messages, return_token_strs: true },
  ]) {
    const tokenized = (await sendRequest(`${proxy.url}/new/tokenize`, body)) as {
      tokens: number[]
      token_strs: string[]
      max_model_len: number
    }
    const own = (await sendRequest(`${engine.url}/tokenize`, body)) as typeof tokenized
    t.same(tokenized.tokens, own.tokens)
    t.equal(tokenized.max_model_len, 512)
    t.equal(tokenized.token_strs?.length ?? null, own.token_strs?.length ?? null)
    t.same(
      await sendRequest(`${proxy.url}/new/detokenize`, { tokens: tokenized.tokens }),
      await sendRequest(`${engine.url}/detokenize`, { tokens: tokenized.tokens }),
    )
  }
  t.same((await proxy.get('/sessions')).sessions, [], 'nothing is recorded, and no session is created')
})

/** A model whose tokenizer adds a begin-of-text token; test/slow/tokens/tokenizer.test.ts reads the other models. */
const MODEL = 'llama3_2'

t.test('texts have the ids of transformers', async (t) => {
  const proxy = await startProxy(t, { tokenizer: modelDirectory(MODEL), mode: 'relay' })
  const { texts, withSpecialTokens } = readFixture(MODEL)
  for (const [index, { text, ids }] of texts.entries()) {
    const { tokens } = await proxy.post('/s/tokenize', { prompt: text, add_special_tokens: false })
    t.same(tokens, ids, `text ${index}`)
  }
  const { tokens, token_strs: strings } = await proxy.post('/s/tokenize', {
    prompt: withSpecialTokens.text,
    return_token_strs: true,
  })
  t.same(tokens, withSpecialTokens.ids)
  t.equal(strings.length, tokens.length)
})

// test/helpers/no-stalls.ts fails this file if the event loop was blocked.
t.test('megabytes of text and millions of ids do not block other requests', async (t) => {
  const proxy = await startProxy(t, { tokenizer: modelDirectory(MODEL), mode: 'relay' })
  for (const prompt of ['a'.repeat(300_000), 'hello world foo '.repeat(60_000)]) {
    const { count, tokens } = await proxy.post('/s/tokenize', { prompt, add_special_tokens: false })
    t.equal(count, tokens.length)
    const { prompt: decoded } = await proxy.post('/s/detokenize', { tokens })
    t.ok(decoded === prompt)
  }
  const { prompt } = await proxy.post('/s/detokenize', { tokens: new Array(1_500_000).fill(100) })
  t.equal(prompt.length, 1_500_000 * (await proxy.post('/s/detokenize', { tokens: [100] })).prompt.length)
})

t.test('unsupported requests are rejected with the reason', async (t) => {
  const proxy = await startProxy(t, {
    tokenizer: 'embedded',
    adminKeys: ['admin'],
    agentKeySecrets: ['secret'],
  })
  const { agent_key: key } = await proxy.post('/sessions', { session_id: 's' })
  const sendRequest = (path: string, body: object, headers: object = { authorization: `Bearer ${key}` }) =>
    fetch(proxy.url + path, {
      method: 'POST',
      headers: { 'content-type': 'application/json', ...headers },
      body: JSON.stringify(body),
    })
  t.equal((await sendRequest('/s/tokenize', { prompt: 'a' })).status, 200)
  t.equal((await sendRequest('/s/tokenize', { prompt: 'a' }, {})).status, 401)
  t.equal((await sendRequest('/another/tokenize', { prompt: 'a' })).status, 403)
  t.equal((await sendRequest('/another/detokenize', { tokens: [1] })).status, 403)
  for (const body of [{}, { messages: [] }, { prompt: 7 }, { prompt: 'a', add_generation_prompt: false }])
    t.equal((await sendRequest('/s/tokenize', body)).status, 400)
  for (const tokens of [undefined, [-1], ['a'], [2 ** 31]])
    t.equal((await sendRequest('/s/detokenize', { tokens })).status, 400)
  const chat = await startProxy(t, { db: 'memory' })
  for (const [path, body] of [
    ['tokenize', { prompt: 'a' }],
    ['detokenize', { tokens: [1] }],
  ] as const) {
    const response = await fetch(`${chat.url}/s/${path}`, {
      method: 'POST',
      headers: { 'content-type': 'application/json' },
      body: JSON.stringify(body),
    })
    t.equal(response.status, 404, 'SDKs retry a 501')
    t.match(await response.json(), { error: { code: 'unsupported', message: /--tokenizer/ } })
  }
})

t.test('ids without a token become empty text', async (t) => {
  const proxy = await startProxy(t, { tokenizer: 'embedded' })
  const ids = loadEmbeddedTokenizer().encode('A lake')
  t.same(await proxy.post('/s/detokenize', { tokens: [...ids, 2 ** 31 - 1] }), { prompt: 'A lake' })
})
