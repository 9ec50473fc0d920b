/** Rollouts over a network that drops attempts at random, and what the proxy recorded of them. */
import Anthropic from '@anthropic-ai/sdk'
import OpenAI from 'openai'
import { type Loss, lossyFetch } from './lossy-fetch.ts'
import type { TestProxy } from './proxy.ts'
import { until } from './until.ts'

const SHARE = 0.05
const LOSSES: readonly Loss[] = ['refused', 'broken', 'silent', 'unread']
/**
 * Shares of all attempts. A client cannot distinguish a break before the response's first byte from a refused
 * connection.
 */
const SHARES = { refused: 2 * SHARE, broken: SHARE, silent: SHARE, unread: SHARE }
/** Sufficient for all but one request in 70 million if a quarter of all attempts is dropped. */
const MANY_RETRIES = 12
const SAMPLING = { model: 'embedded', max_tokens: 8 }

export const RETRIES = ['answered', 'unknown', 'none'] as const

/**
 * `answered`: clients declare their attempts, and the proxy serves a retry from the original attempt. `unknown`: the
 * proxy receives no retry info, so that each attempt is a separate request. `none`: clients do not retry.
 */
export type Retries = (typeof RETRIES)[number]

interface RequestOptions {
  baseUrl: string
  texts: readonly string[]
  fetch: typeof fetch
  maxRetries: number
}

/**
 * Sends a request with an unmodified client.
 * @returns the text of the response, or of a part of it
 */
type Client = (options: RequestOptions) => Promise<string>

export const CLIENTS: Record<string, Client> = {
  openai: async ({ baseUrl, texts, fetch, maxRetries }) => {
    const client = new OpenAI({ baseURL: baseUrl, apiKey: 'none', fetch, maxRetries })
    const { choices } = await client.chat.completions.create({ ...SAMPLING, messages: toMessages(texts) })
    return choices[0]?.message.content ?? ''
  },
  anthropic: async ({ baseUrl, texts, fetch, maxRetries }) => {
    const client = new Anthropic({ baseURL: baseUrl.replace(/\/v1$/, ''), apiKey: 'none', fetch, maxRetries })
    const { content } = await client.messages.create({ ...SAMPLING, messages: toMessages(texts) })
    return content.map((part) => (part.type === 'text' ? part.text : '')).join('')
  },
  // The API that Codex uses: streamed Responses, which the server does not store.
  responses: async ({ baseUrl, texts, fetch, maxRetries }) => {
    const client = new OpenAI({ baseURL: baseUrl, apiKey: 'none', fetch, maxRetries })
    const { model, max_tokens: max_output_tokens } = SAMPLING
    const params = { model, max_output_tokens, input: toMessages(texts), store: false, stream: true } as const
    let text = ''
    for await (const event of await client.responses.create(params))
      if (event.type === 'response.output_text.delta') text += event.delta
    return text
  },
}

function toMessages(texts: readonly string[]) {
  return texts.map((content, i) => ({
    role: i % 2 === 0 ? ('user' as const) : ('assistant' as const),
    content,
  }))
}

/** Returns a generator of the same numbers on each run (mulberry32). */
export function createRandom(seed: number): () => number {
  let state = seed
  return () => {
    state = (state + 0x6d2b79f5) | 0
    let mixed = Math.imul(state ^ (state >>> 15), 1 | state)
    mixed = (mixed + Math.imul(mixed ^ (mixed >>> 7), 61 | mixed)) ^ mixed
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32
  }
}

/** Draws what happens to the attempts of one request: losses, until one succeeds. */
function drawLosses(draw: () => number): Loss[] {
  const losses: Loss[] = []
  for (;;) {
    let left = draw()
    const loss = LOSSES.find((each) => {
      left -= SHARES[each]
      return left < 0
    })
    if (loss === undefined) return losses
    losses.push(loss)
  }
}

interface RolloutResult {
  sessionId: string
  /** The number of responses that the agent read. */
  read: number
  lostAttempts: number
  /** The error that ended the rollout early; absent: it completed. */
  error?: unknown
}

interface RolloutOptions {
  sessionId: string
  client: keyof typeof CLIENTS
  requests: number
  retries: Retries
  draw: () => number
}

/** Runs one agent's requests, each of which continues the previous one. */
export async function rollOut(
  proxy: TestProxy,
  { sessionId, client, requests, retries, draw }: RolloutOptions,
): Promise<RolloutResult> {
  const texts = [`Begin ${sessionId}.`]
  const result: RolloutResult = { sessionId, read: 0, lostAttempts: 0 }
  const maxRetries = retries === 'none' ? 0 : MANY_RETRIES
  for (let index = 0; index < requests; index += 1) {
    const losses = drawLosses(draw)
    const before = losses.includes('silent') ? await countTurns(proxy, sessionId) : 0
    const lossy = lossyFetch(losses, () => until(async () => (await countTurns(proxy, sessionId)) > before))
    const fetch = retries === 'answered' ? lossy.fetch : withoutRetryInfo(lossy.fetch)
    try {
      const response = await CLIENTS[client]!({ baseUrl: proxy.baseUrl(sessionId), texts, fetch, maxRetries })
      texts.push(response, `Go on, ${index}.`)
    } catch (error) {
      return { ...result, lostAttempts: result.lostAttempts + 1, error }
    }
    result.lostAttempts += losses.length
    result.read += 1
  }
  return result
}

async function countTurns(proxy: TestProxy, sessionId: string): Promise<number> {
  return (await proxy.get(`/sessions/${sessionId}/tree`)).turns?.length ?? 0
}

/** Returns a `fetch` that does not declare attempts to the server. */
function withoutRetryInfo(send: typeof fetch): typeof fetch {
  return (input, init) => {
    const headers = new Headers(init?.headers)
    headers.delete('x-stainless-retry-count')
    headers.delete('idempotency-key')
    return send(input, { ...init, headers })
  }
}

interface RecordedTotals {
  turns: number
  completed: number
  sampledTokens: number
  /** Positions of the rows with mask 1. */
  trainedTokens: number
  /** Retries that were served without sampling. */
  redeliveries: number
}

export async function readRecordedTotals(proxy: TestProxy, sessionId: string): Promise<RecordedTotals> {
  const { turns = [] } = await proxy.get(`/sessions/${sessionId}`)
  const { trajectories = [] } = await proxy.get(`/sessions/${sessionId}/trajectories`)
  const addOnes = (sum: number, row: { response_mask: number[] }) =>
    sum + row.response_mask.reduce((all, bit) => all + bit, 0)
  const result = { turns: turns.length, completed: 0, sampledTokens: 0, redeliveries: 0 }
  for (const { status, completion_token_ids: ids, annotations } of turns) {
    result.completed += status === 'completed' ? 1 : 0
    result.sampledTokens += ids?.length ?? 0
    result.redeliveries += annotations.answered_retries?.length ?? 0
  }
  return { ...result, trainedTokens: trajectories.reduce(addOnes, 0) }
}
