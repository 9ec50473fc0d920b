/** Ids of every kind, on every route, with their slashes raw and encoded. */
import Anthropic from '@anthropic-ai/sdk'
import OpenAI from 'openai'
import t from 'tap'
import { KEYS } from '../helpers/keys.ts'
import { startProxy, type TestProxy } from '../helpers/proxy.ts'

const CHAT = { model: 'embedded', messages: [{ role: 'user' as const, content: 'Hi' }], max_tokens: 4 }
const IDS = [
  'harbor/hello-world:0',
  'a+b c@d,e',
  'größe/🙂',
  'a?b#c%2Fd',
  'a/complete',
  'x'.repeat(512),
  '日'.repeat(170),
]

const encoded = (id: string) => encodeURIComponent(id)
/** Encodes an id for a URL, except its slashes. */
const raw = (id: string) => encodeURIComponent(id).replaceAll('%2F', '/')

async function getStatus(proxy: TestProxy, method: string, path: string, key?: string): Promise<number> {
  const headers = key === undefined ? {} : { authorization: `Bearer ${key}` }
  const response = await fetch(proxy.url + path, { method, headers })
  await response.arrayBuffer()
  return response.status
}

for (const [how, write] of Object.entries({ raw, encoded })) {
  t.test(`a session with any id works throughout its life, written ${how}`, async (t) => {
    const proxy = await startProxy(t)
    // The last part of this id is the name of a route: with a raw slash, the path means that route.
    for (const id of IDS.filter((id) => how === 'encoded' || id !== 'a/complete')) {
      const path = `/sessions/${write(id)}`
      t.match(await proxy.post(path), { session_id: id, status: 'created' })
      for (const base of [`/${write(id)}`, path]) {
        const openai = new OpenAI({ baseURL: `${proxy.url}${base}/v1`, apiKey: 'none', maxRetries: 0 })
        await openai.chat.completions.create(CHAT)
        const { id: responseId } = await openai.responses.create({ model: 'embedded', input: 'Hi' })
        t.equal((await openai.responses.retrieve(responseId)).id, responseId)
        t.equal((await openai.models.retrieve('embedded')).id, 'embedded')
        const anthropic = new Anthropic({ baseURL: proxy.url + base, apiKey: 'none', maxRetries: 0 })
        await anthropic.messages.create(CHAT)
      }
      t.match(await proxy.post(`/v1/chat/completions/${write(id)}`, CHAT), { object: 'chat.completion' })
      t.match(await proxy.get(path), { session_id: id, num_turns: 7 })
      t.equal((await proxy.get(`${path}/trajectories`)).session_id, id)
      const traces = await proxy.get(`${path}/traces`)
      t.equal(traces.length, 7)
      t.equal(traces[0].session_id, id)
      t.match(await proxy.get(`/traces/${write(traces[0].trace_id)}`), { trace_id: traces[0].trace_id })
      t.match(await proxy.post(`${path}/reward`, { reward: 1 }), { reward: 1 })
      t.match(await proxy.get(`${path}/wait?timeout_s=0`), { session_id: id, timed_out: true })
      t.match(await proxy.post(`${path}/complete`), { session_id: id, completed: true })
      t.equal(await getStatus(proxy, 'DELETE', path), 200)
    }
    t.same((await proxy.get('/sessions')).sessions, [])
  })
}

t.test("on a proxy without keys an id is its session's key, percent-encoded", async (t) => {
  const proxy = await startProxy(t)
  for (const id of IDS) {
    await proxy.post('/sessions', { session_id: id })
    const apiKey = encodeURIComponent(id).replaceAll('%3A', ':')
    await new OpenAI({ baseURL: `${proxy.url}/v1`, apiKey }).chat.completions.create(CHAT)
    t.match(await proxy.get(`/sessions/${encoded(id)}`), { num_turns: 1 })
  }
})

t.test(
  'with keys, the key of such a session is valid for this one only, however its path is written',
  async (t) => {
    const proxy = await startProxy(t, KEYS)
    for (const id of IDS) {
      const { agent_key: key } = await proxy.post('/sessions', { session_id: id })
      t.match(key, /^[!-~]+$/, 'fits into a header')
      await new OpenAI({ baseURL: `${proxy.url}/v1`, apiKey: key }).chat.completions.create(CHAT)
      await new OpenAI({ baseURL: `${proxy.url}/${encoded(id)}/v1`, apiKey: key }).chat.completions.create(
        CHAT,
      )
      t.match(await proxy.get(`/sessions/${encoded(id)}`), { num_turns: 2 })
      for (const other of [
        'harbor',
        'hello-world:0',
        'harbor/hello-world:0/x',
        'a',
        'a+b',
        `${raw(id)}/../other`,
      ]) {
        const path = `/${other}/v1/chat/completions`
        t.equal(await getStatus(proxy, 'POST', path, key), 403, path)
        t.equal(await getStatus(proxy, 'POST', `/sessions${path}`, key), 403, path)
      }
      t.equal(await getStatus(proxy, 'GET', `/${raw(id)}/sessions/other`, key), 404)
      t.equal(await getStatus(proxy, 'GET', `/sessions/${raw(id)}`, key), 403)
      t.equal(await getStatus(proxy, 'POST', `/sessions/${raw(id)}/v1/../reward`, key), 403)
    }
  },
)

t.test('no path escapes a session', async (t) => {
  const proxy = await startProxy(t)
  for (const path of [
    '/a/%2e%2e%2fother',
    '/a%2F..%2Fother',
    '/a%2F%2Fb',
    '/a%2F.',
    '/v1%2Fb',
    '/sessions%2Fb',
  ]) {
    const url = `${proxy.url}${path}/v1/chat/completions`
    const response = await fetch(url, { method: 'POST', body: JSON.stringify(CHAT) })
    t.match(await response.json(), { error: { code: 'invalid_request', param: 'session_id' } }, path)
  }
  t.same((await proxy.get('/sessions')).sessions, [])
})

t.test('a base URL that already has an API path records in no other session', async (t) => {
  const proxy = await startProxy(t)
  for (const path of [
    '/a/messages/v1/messages',
    '/a/chat/completions/v1/chat/completions',
    '/a/v1/responses/v1/responses',
  ]) {
    const response = await fetch(`${proxy.url}${path}`, { method: 'POST', body: JSON.stringify(CHAT) })
    const body = (await response.json()) as { error: { message: string } }
    t.equal(response.status, 400, path)
    t.match(body.error.message, /The base URL is too long/)
  }
  t.same((await proxy.get('/sessions')).sessions, [])
})
