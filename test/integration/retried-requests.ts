/** Requests of the official SDKs whose first attempts are lost, in each dialect and each mode. */
import Anthropic from '@anthropic-ai/sdk'
import OpenAI from 'openai'
import type { Test } from 'tap'
import type { ServeConfig } from '../../src/proxy/config/options/serve.ts'
import { startEngine } from '../helpers/engine.ts'
import { type Loss, type LossyFetch, lossyFetch } from '../helpers/lossy-fetch.ts'
import { startProxy, type TestProxy } from '../helpers/proxy.ts'
import { joinWorker } from '../helpers/relay-rig.ts'
import { until } from '../helpers/until.ts'

interface Client {
  baseUrl: string
  fetch: typeof fetch
  apiKey?: string
  headers?: Record<string, string>
}

/** Sends one question in a dialect with the vendor's unmodified client, and reads the complete response. */
type SendRequest = (client: Client, stream: boolean) => Promise<void>

const QUESTION = 'Tell me of the sea.'

function openai({ baseUrl, fetch, apiKey = 'none', headers = {} }: Client): OpenAI {
  return new OpenAI({ baseURL: baseUrl, apiKey, fetch, defaultHeaders: headers })
}

async function readAll(response: unknown): Promise<void> {
  if (typeof response === 'object' && response !== null && Symbol.asyncIterator in response)
    for await (const _ of response as AsyncIterable<unknown>);
}

export const DIALECTS: Record<string, SendRequest> = {
  chat: async (client, stream) => {
    const messages = [{ role: 'user' as const, content: QUESTION }]
    await readAll(
      await openai(client).chat.completions.create({ model: 'embedded', messages, stream, max_tokens: 30 }),
    )
  },
  completions: async (client, stream) => {
    await readAll(
      await openai(client).completions.create({
        model: 'embedded',
        prompt: QUESTION,
        stream,
        max_tokens: 30,
      }),
    )
  },
  responses: async (client, stream) => {
    await readAll(
      await openai(client).responses.create({
        model: 'embedded',
        input: QUESTION,
        stream,
        max_output_tokens: 30,
      }),
    )
  },
  messages: async ({ baseUrl, fetch, apiKey = 'none', headers = {} }, stream) => {
    const client = new Anthropic({
      baseURL: baseUrl.replace(/\/v1$/, ''),
      apiKey,
      fetch,
      defaultHeaders: headers,
    })
    const messages = [{ role: 'user' as const, content: QUESTION }]
    await readAll(await client.messages.create({ model: 'embedded', messages, stream, max_tokens: 30 }))
  },
}

/** Returns the text of a response, however it is split into events. */
export function readText(body: string): string {
  if (!/^(event|data|:)/.test(body)) return JSON.stringify(JSON.parse(body))
  const events = [...body.matchAll(/^data: (\{.*)$/gm)].map(([, json]) => JSON.parse(json!))
  const full = events.find(({ type }) => type === 'response.completed' || type === 'response.incomplete')
  if (full) return JSON.stringify(full.response)
  const texts = events.map(({ delta, choices }) => {
    return delta?.text ?? choices?.[0]?.delta?.content ?? choices?.[0]?.text ?? ''
  })
  const [{ id, message }] = events
  return `${id ?? message.id} ${texts.join('')}`
}

export async function startLocal(t: Test, overrides: Partial<ServeConfig>): Promise<TestProxy> {
  const engine = await startEngine(t, { tokensPerSecond: 200 })
  return startProxy(t, { engineUrls: [engine.url], ...overrides })
}

async function startRelay(t: Test, overrides: Partial<ServeConfig>): Promise<TestProxy> {
  const engine = await startEngine(t, { tokensPerSecond: 200 })
  const proxy = await startProxy(t, { mode: 'relay', ...overrides })
  joinWorker(t, { proxyUrls: [proxy.url], engineUrls: [engine.url] })
  return proxy
}

const MODES = {
  'local, chat mode': (t: Test) => startLocal(t, {}),
  'local, token mode': (t: Test) => startLocal(t, { tokenizer: 'embedded' }),
  'relay, chat mode': (t: Test) => startRelay(t, {}),
  'relay, token mode': (t: Test) => startRelay(t, { tokenizer: 'embedded' }),
}

export const getTurns = async (proxy: TestProxy, sessionId: string) =>
  (await proxy.get(`/sessions/${sessionId}`)).turns ?? []

/** SDKs do not retry a stream that has started, so streams are never `broken`. */
const LOSSES: readonly Loss[][] = [['refused'], ['broken'], ['silent'], ['unread'], ['unread', 'unread']]

function createLossyFetch(proxy: TestProxy, sessionId: string, losses: Loss[]): LossyFetch {
  return lossyFetch(losses, () => until(async () => (await getTurns(proxy, sessionId)).length > 0))
}

/** Sends one request whose first attempts are lost. */
async function checkRetry(
  t: Test,
  proxy: TestProxy,
  {
    name,
    sendRequest,
    stream,
    losses,
  }: { name: string; sendRequest: SendRequest; stream: boolean; losses: Loss[] },
) {
  const sessionId = `${name} ${stream ? 'stream' : 'complete'} ${losses.join(' ')}`.replaceAll(' ', '-')
  const lossy = createLossyFetch(proxy, sessionId, losses)
  await sendRequest({ baseUrl: proxy.baseUrl(sessionId), fetch: lossy.fetch }, stream)
  const turns = await getTurns(proxy, sessionId)
  t.equal(turns.length, 1, `${sessionId}: sampled once`)
  t.equal(turns[0].status, 'completed', `${sessionId}: recorded as completed`)
  const retries = turns[0].annotations.answered_retries ?? []
  const reached = losses.filter((loss) => loss !== 'refused').length
  t.equal(retries.length, reached, `${sessionId}: the number of retries is recorded`)
  const [first, ...others] = lossy.bodies.map(readText)
  for (const other of others) t.equal(other, first, `${sessionId}: the same response`)
  const { trajectories } = await proxy.get(`/sessions/${sessionId}/trajectories`)
  const mask = trajectories.flatMap((row: { response_mask: number[] }) => row.response_mask)
  const trained = mask.filter((bit: number) => bit === 1).length
  t.equal(trained, turns[0].completion_token_ids.length, `${sessionId}: each sampled token is trained once`)
}

export function testRetries(t: Test, mode: keyof typeof MODES): void {
  t.test(
    `${mode}: a retry gets the response of the original attempt, in every dialect, complete and streamed`,
    async (t) => {
      const proxy = await MODES[mode](t)
      const cases = Object.entries(DIALECTS).flatMap(([name, sendRequest]) =>
        [true, false].flatMap((stream) =>
          LOSSES.filter(([loss]) => !stream || loss !== 'broken').map((losses) => ({
            name,
            sendRequest,
            stream,
            losses,
          })),
        ),
      )
      await Promise.all(cases.map((retryCase) => checkRetry(t, proxy, retryCase)))
      const metrics = await (await fetch(`${proxy.url}/metrics`)).text()
      const counted = [...metrics.matchAll(/^llm_proxy_answered_retries_total\{.*\} (\d+)$/gm)]
      const sum = counted.reduce((total, [, count]) => total + Number(count), 0)
      t.equal(
        sum,
        cases.reduce((sum, { losses }) => sum + losses.filter((loss) => loss !== 'refused').length, 0),
        'each is counted',
      )
    },
  )
}
