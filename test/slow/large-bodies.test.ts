/** Bodies that would block other requests or fill the memory: rejected before they are parsed, or while others wait. */
import t from 'tap'
import { BODY_VALUES } from '../../src/proxy/http/transport/json-body.ts'
import { KEYS } from '../helpers/keys.ts'
import { runUnwatched } from '../helpers/no-stalls.ts'
import { startProxy } from '../helpers/proxy.ts'
import { completeResponse, respond, untilAborted } from '../helpers/scripted-backend.ts'
import { startSessionsApi } from '../helpers/sessions-api.ts'
import { watchStalls } from '../helpers/stall-watch.ts'
import { until } from '../helpers/until.ts'

const HELLO = '"messages":[{"role":"user","content":"hi"}],"max_tokens":1'
const list = (item: string, count: number) => `[${Array(count).fill(item).join()}]`
const members = (count: number) => Array.from({ length: count }, (_, index) => `"k${index}":0`).join()

function send(
  url: string,
  body: string | Buffer<ArrayBuffer>,
  session = 's',
  more: RequestInit = {},
): Promise<Response> {
  return fetch(`${url}/${session}/v1/chat/completions`, { method: 'POST', body, ...more })
}

t.test('a body with more values than any agent sends is rejected before it is parsed', async (t) => {
  const { url } = await startProxy(t)
  const bodies = {
    'empty objects': `{"messages":${list('{}', BODY_VALUES.nodes)}}`,
    'lists in lists': `{${HELLO},"x":${list('[[]]', BODY_VALUES.nodes / 2)}}`,
    numbers: `{${HELLO},"x":${list('1', BODY_VALUES.commas + 1)}}`,
    'members of one object': `{${HELLO},"x":{${members(BODY_VALUES.members + 1)}}}`,
    'members of the body': `{${HELLO},${members(BODY_VALUES.members)}}`,
    'invalid JSON': '{},'.repeat(BODY_VALUES.nodes + 1),
  }
  const stalls = await watchStalls(t)
  for (const [label, body] of Object.entries(bodies))
    await stalls.withoutStall(async () => {
      const response = await send(url, body)
      t.equal(response.status, 413, label)
      t.match(await response.json(), { error: { code: 'body_too_large', message: /too many values/ } })
    })
})

t.test('the repeated part of a request counts together with its new part', async (t) => {
  const { url, backend } = await startSessionsApi(t, undefined, {}, { bodyLimitBytes: 8 * 1024 * 1024 })
  backend.script = () => respond(completeResponse())
  const message = '{"role":"user","content":"hi"}'
  const body = (count: number) => runUnwatched(() => Buffer.from(`{"messages":${list(message, count)}}`))
  // Each message counts as three nodes.
  t.equal((await send(url, await body(20_000))).status, 200)
  t.equal((await send(url, await body(30_000))).status, 200)
  t.equal((await send(url, await body(40_000))).status, 413)
})

t.test('the largest prompts that agents send are accepted', async (t) => {
  const { url, backend } = await startSessionsApi(t, undefined, {}, { bodyLimitBytes: 16 * 1024 * 1024 })
  const picture = await runUnwatched(() => {
    const image = `data:image/png;base64,${'A'.repeat(15 * 1024 * 1024)}`
    const content = JSON.stringify([{ type: 'image_url', image_url: { url: image } }])
    return Buffer.from(`{"messages":[{"role":"user","content":${content}}]}`)
  })
  t.equal((await send(url, picture)).status, 200)
  const ids = await runUnwatched(() => Buffer.from(`{"model":"m","prompt":${list('12345', 1_000_000)}}`))
  const completion = await fetch(`${url}/s/v1/completions`, { method: 'POST', body: ids })
  t.equal(completion.status, 200)
  t.equal(backend.requests.length, 2)
})

t.test('the embedded engine does not block other requests with the longest prompt', async (t) => {
  const { url } = await startProxy(t)
  const body = (content: string) =>
    Buffer.from(JSON.stringify({ messages: [{ role: 'user', content }], max_tokens: 1 }))
  const [tooLong, long] = await runUnwatched(() =>
    ['A word or two. '.repeat(1_000_000), 'words '.repeat(20_000)].map(body),
  )
  const stalls = await watchStalls(t)
  let session = 0
  await stalls.withoutStall(async () => {
    const rejected = await send(url, tooLong!)
    t.equal(rejected.status, 400)
    t.match(await rejected.json(), { error: { code: 'context_length_exceeded' } })
    session += 1
    t.equal((await send(url, long!, `another-${session}`)).status, 200)
  })
})

t.test('bodies of requests in flight share a budget until their response', async (t) => {
  const { url, backend } = await startSessionsApi(t, undefined, {}, { limits: { memoryBytes: 30_000 } })
  backend.script = async function* (_request, signal) {
    yield await untilAborted(signal)
  }
  const body = `{"messages":[{"role":"user","content":"${'x'.repeat(20_000)}"}]}`
  const controller = new AbortController()
  const waiting = send(url, body, 'first', { signal: controller.signal }).catch(() => {})
  await until(() => backend.requests.length === 1)
  const rejected = await send(url, body, 'second')
  t.equal(rejected.status, 503)
  t.equal(rejected.headers.get('retry-after'), '1')
  t.match(await rejected.json(), { error: { code: 'queue_full' } })
  controller.abort()
  await waiting
  backend.script = () => respond(completeResponse())
  await until(async () => (await send(url, body, 'second')).status === 200)
})

t.test('one agent cannot use up the budget', async (t) => {
  const { url, backend, sessions } = await startSessionsApi(
    t,
    undefined,
    {},
    { limits: { memoryBytes: 100_000 }, keys: KEYS },
  )
  backend.script = async function* (_request, signal) {
    yield await untilAborted(signal)
  }
  const createHeaders = async (session: string) => {
    const headers = { authorization: `Bearer ${KEYS.adminKeys[0]}` }
    const response = await fetch(`${url}/sessions/${session}`, { method: 'POST', headers })
    const { agent_key: key } = (await response.json()) as { agent_key: string }
    return { headers: { authorization: `Bearer ${key}` } }
  }
  const [greedy, other] = [await createHeaders('greedy'), await createHeaders('other')]
  const body = `{"messages":[{"role":"user","content":"${'x'.repeat(20_000)}"}]}`
  void send(url, body, 'greedy', greedy).catch(() => {})
  await until(() => backend.requests.length === 1)
  t.equal((await send(url, body, 'greedy', greedy)).status, 429)
  void send(url, body, 'other', other).catch(() => {})
  await until(() => backend.requests.length === 2)
  await sessions.close()
})

t.test('a session starts one request at a time that adds thousands of messages', async (t) => {
  const { url, backend } = await startSessionsApi(t, undefined, {}, { bodyLimitBytes: 8 * 1024 * 1024 })
  const resumes: (() => void)[] = []
  backend.script = async function* () {
    await new Promise<void>((resolve) => resumes.push(resolve))
    yield* respond(completeResponse())
  }
  const createConversation = (name: string, count: number, words = '') =>
    JSON.stringify({
      messages: Array.from({ length: count }, (_, index) => ({
        role: 'user',
        content: `${name} ${index}${words}`,
      })),
    })
  const requests = [send(url, createConversation('a', 5_000), 's')]
  await until(() => resumes.length === 1)
  requests.push(
    send(url, createConversation('b', 5_000), 's'),
    send(url, createConversation('c', 5_000), 's'),
  )
  // Neither another session's request nor a small one of this session waits.
  requests.push(
    send(url, createConversation('d', 5_000), 'other'),
    send(url, createConversation('e', 1), 's'),
  )
  await until(() => resumes.length === 3)
  t.equal(backend.requests.length, 3, 'two wait')
  await until(() => resumes.length === 5)
  t.pass('they start although the first one continues')
  requests.push(send(url, createConversation('f', 1, ' word'.repeat(10_000)), 's'))
  await until(() => resumes.length === 6)
  t.pass('a long request with few messages starts, too')
  for (const resume of resumes) resume()
  for (const request of requests) t.equal((await request).status, 200)
  resumes.length = 0
  const extended = [createConversation('a', 5_010), createConversation('a', 5_020)].map((body) =>
    send(url, body, 's'),
  )
  await until(() => resumes.length === 2)
  for (const resume of resumes) resume()
  for (const request of extended) t.equal((await request).status, 200, 'repeated messages do not count')
})
