/** The proxy behind an ingress: below a base path, with forwarded client addresses. */
import { once } from 'node:events'
import Anthropic from '@anthropic-ai/sdk'
import OpenAI from 'openai'
import t from 'tap'
import WebSocket from 'ws'
import { KEYS } from '../helpers/keys.ts'
import { startProxy } from '../helpers/proxy.ts'
import { startRelayProxy, startWorkerClient, untilWorkers } from '../helpers/relay-rig.ts'
import { silentLogger } from '../helpers/silent-logger.ts'

const CHAT = { model: 'embedded', messages: [{ role: 'user' as const, content: 'hi' }], max_tokens: 3 }

t.test('everything is below the base path, and nothing beside it', async (t) => {
  const proxy = await startProxy(t, { basePath: '/team/llm' })
  t.match(proxy.url, /:\d+\/team\/llm$/)
  const { origin } = new URL(proxy.url)
  await proxy.post('/sessions/s')
  await new OpenAI({ baseURL: proxy.baseUrl('s'), apiKey: 'none' }).chat.completions.create(CHAT)
  await new OpenAI({ baseURL: `${proxy.url}/v1`, apiKey: 's' }).chat.completions.create(CHAT)
  await new Anthropic({ baseURL: `${proxy.url}/s`, apiKey: 'none' }).messages.create(CHAT)
  t.equal((await proxy.get('/sessions/s')).num_turns, 3)
  t.equal((await proxy.get('/health')).status, 'ok')
  t.ok(Object.keys((await proxy.get('/openapi.json')).paths).includes('/team/llm/sessions'))
  const root = await fetch(`${proxy.url}/`, { redirect: 'manual' })
  t.equal(
    root.headers.get('location'),
    '/team/llm/ui',
    'a browser at this address is redirected to the inspector',
  )
  for (const path of ['/health', '/sessions/s', '/s/v1/models', '/team/health', '/team/llmhealth']) {
    const response = await fetch(origin + path)
    t.equal(response.status, 404, path)
    t.match(
      await response.json(),
      path.includes('/v1/') ? { error: Object } : { detail: `There is no GET ${path}` },
    )
  }
})

t.test('a worker connects below the base path', async (t) => {
  const proxy = await startRelayProxy(t, { basePath: '/llm' })
  const worker = startWorkerClient(t, proxy.url, 'w')
  await once(worker, 'connected')
  await untilWorkers(proxy, 'w')
})

t.test('X-Forwarded-* is accepted only from trusted proxies', async (t) => {
  const getLoggedAddresses = async (trustedProxies: string[]) => {
    const loggedAddresses: unknown[] = []
    const logger = {
      ...silentLogger,
      info: (fields: object) => loggedAddresses.push((fields as { address?: string }).address),
    }
    const db = 'memory'
    const { url } = await startProxy(t, { ...KEYS, trustedProxies, db }, logger)
    await (await fetch(`${url}/sessions`, { headers: { 'x-forwarded-for': '203.0.113.7, 10.1.1.1' } })).text()
    return loggedAddresses.filter((address) => address !== undefined)
  }
  t.same(await getLoggedAddresses([]), ['127.0.0.1'])
  t.same(await getLoggedAddresses(['192.0.2.0/24']), ['127.0.0.1'])
  t.same(
    await getLoggedAddresses(['127.0.0.0/8']),
    ['10.1.1.1'],
    'the address from which the trusted proxy received the request',
  )
  t.same(await getLoggedAddresses(['127.0.0.1', '10.0.0.0/8']), ['203.0.113.7'])
})

t.test("the origin of a page is compared with the host in a trusted proxy's request", async (t) => {
  const getStatus = async (trustedProxies: string[]) => {
    const { url } = await startRelayProxy(t, { ...KEYS, trustedProxies, db: 'memory' })
    const headers = { 'x-forwarded-host': 'llm.example' }
    const socket = new WebSocket(`${url.replace('http', 'ws')}/ws/worker`, {
      origin: 'https://llm.example',
      headers,
    })
    socket.on('error', () => {})
    const [, { statusCode }] = await once(socket, 'unexpected-response')
    socket.terminate()
    return statusCode
  }
  t.equal(await getStatus([]), 403, 'a foreign page')
  t.equal(await getStatus(['127.0.0.1']), 401, 'a page of the proxy, but without a key')
})
