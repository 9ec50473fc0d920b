/** A proxy in token mode whose engine requests are cut, and checks of what its agents receive and its turns contain. */
import type { Test } from 'tap'
import { loadEmbeddedTokenizer } from '../../src/embedded/engine/embedded-model.ts'
import type { ServeConfig } from '../../src/proxy/config/options/serve.ts'
import { type Cut, type CutKind, logprobBy, startCuttingEngine } from './cutting-engine.ts'
import { startProxy } from './proxy.ts'
import { joinWorker, untilWorkers } from './relay-rig.ts'

const tokenizer = loadEmbeddedTokenizer()
const decode = (ids: readonly number[]) => tokenizer.decode(ids, { skipSpecialTokens: true })
/** Reasoning, a text with a character of four bytes, and a tool call. */
const TEXT =
  '<think>\nNaïve 🙂 thought.\n</think>\n\nThe end is 🙃 near.\n<tool_call>\n{"name": "f", "arguments": {"a": "ü"}}\n</tool_call>'
export const COMPLETION = [...tokenizer.encode(TEXT), tokenizer.eosTokenId!]
export const LENGTH = COMPLETION.length

export const tool = {
  name: 'f',
  description: 'A function',
  parameters: { type: 'object', properties: { a: { type: 'string' } } },
}
const messages = [{ role: 'user', content: 'Hello!' }]
export const BODIES: Record<string, (id: string, stream: boolean) => { path: string; body: object }> = {
  chat: (id, stream) => ({
    path: `/${id}/v1/chat/completions`,
    body: {
      model: 'fake',
      messages,
      tools: [{ type: 'function', function: tool }],
      stream,
      ...(stream && { stream_options: { include_usage: true } }),
    },
  }),
  responses: (id, stream) => ({
    path: `/${id}/v1/responses`,
    body: { model: 'fake', input: 'Hello!', tools: [{ type: 'function', ...tool, strict: false }], stream },
  }),
  messages: (id, stream) => ({
    path: `/${id}/v1/messages`,
    body: {
      model: 'fake',
      max_tokens: 500,
      messages,
      tools: [{ name: 'f', input_schema: tool.parameters }],
      stream,
    },
  }),
  gemini: (id, stream) => ({
    path: `/${id}/v1beta/models/fake:${stream ? 'streamGenerateContent?alt=sse' : 'generateContent'}`,
    body: {
      contents: [{ role: 'user', parts: [{ text: 'Hello!' }] }],
      tools: [{ functionDeclarations: [tool] }],
    },
  }),
  completions: (id, stream) => ({
    path: `/${id}/v1/completions`,
    body: { model: 'fake', prompt: tokenizer.encode('Hello!'), max_tokens: 500, stream },
  }),
}

/**
 * Starts an engine and a proxy, in relay mode with a worker between them.
 * @param linkTo returns the URL at which the worker reaches the proxy. Default: the proxy's
 */
export async function startCutRig(
  t: Test,
  kind: 'vllm' | 'sglang',
  overrides: Partial<ServeConfig> = {},
  linkTo = async (url: string) => url,
) {
  const engine = await startCuttingEngine({ kind, completion: COMPLETION, decode })
  t.teardown(() => engine.close())
  const engines = { engineUrls: [engine.url], engineKind: kind }
  const isRelay = overrides.mode === 'relay'
  const proxy = await startProxy(t, {
    tokenizer: 'embedded',
    contextLength: 4_096,
    continueResponses: true,
    ...(!isRelay && engines),
    ...overrides,
  })
  if (isRelay) {
    joinWorker(t, { ...engines, proxyUrls: [await linkTo(proxy.url)], workerId: 'w1' })
    await untilWorkers(proxy, 'w1')
  }
  let sessions = 0
  /** Sends a request whose engine requests are cut. @returns the response of its agent, and its turn */
  const sendRequest = async (dialect: string, stream: boolean, cuts: readonly Cut[], fields: object = {}) => {
    engine.cuts = [...cuts]
    sessions += 1
    const id = `s${sessions}`
    const { path, body } = BODIES[dialect]!(id, stream)
    const response = await fetch(proxy.url + path, {
      method: 'POST',
      headers: { 'content-type': 'application/json' },
      body: JSON.stringify({ ...body, ...fields }),
    })
    const text = await response.text()
    const { turns } = await proxy.get(`/sessions/${id}`)
    return { id, status: response.status, text, turn: turns.at(-1), turns }
  }
  return { engine, engines, proxy, sendRequest }
}

/** Removes ids and times from an agent's response, and joins the texts of a stream. */
export function normalizeResponse(text: string, stream: boolean): unknown {
  if (!stream) return withoutIds(JSON.parse(text))
  const events = [...text.matchAll(/^data: (\{.*\})$/gm)].map(([, json]) => JSON.parse(json!))
  const strings: Record<string, string> = {}
  for (const event of events) addStrings(withoutIds(event), '', strings)
  return strings
}

// biome-ignore lint/suspicious/noExplicitAny: tests look into turns of any shape
export type Json = any

const VARIES =
  /^(id|.*_id|call_id|created|created_at|completed_at|responseId|createTime|sequence_number|encrypted_content|signature|type|obfuscation|role|modelVersion)$/

function withoutIds(value: unknown): unknown {
  if (Array.isArray(value)) return value.map(withoutIds)
  if (typeof value !== 'object' || value === null) return value
  const entries = Object.entries(value).filter(([key]) => !VARIES.test(key))
  return Object.fromEntries(entries.map(([key, member]) => [key, withoutIds(member)]))
}

function addStrings(value: unknown, path: string, strings: Record<string, string>): void {
  if (typeof value === 'string') strings[path] = (strings[path] ?? '') + value
  else if (typeof value === 'object' && value !== null)
    for (const [key, member] of Object.entries(value)) addStrings(member, `${path}.${key}`, strings)
}

/** Returns the expected fields of a turn: each token once, with the logprob of the weights that sampled it. */
function expectedTurn({
  turn,
  parts,
  reasons,
}: {
  turn: Json
  parts: Json[]
  reasons: readonly string[]
}): object {
  const versions = parts.flatMap(({ start, end, weight_version: version }) =>
    Array(end - start).fill(version),
  )
  return {
    status: 'completed',
    exact: true,
    ids: COMPLETION,
    logprobs: COMPLETION.map((id, index) => logprobBy(versions[index], id)),
    reasons,
    starts: [0, ...parts.slice(0, -1).map(({ end }) => end)],
    requests: reasons.length,
    counted: [turn.prompt_token_ids.length, LENGTH],
  }
}

const END_REASONS = {
  abort: 'abort',
  disconnect: 'engine_lost',
  error: 'engine_lost',
  paused: 'worker_lost',
} as const

export function checkTurn(t: Test, turn: Json, kinds: readonly CutKind[], message: string): void {
  const parts: Json[] = turn.annotations.engine_requests ?? []
  const reasons = [...kinds.map((kind) => END_REASONS[kind]), 'stop']
  const { prompt_tokens: prompt, completion_tokens: completion } = turn.usage
  const actual = {
    status: turn.status,
    exact: turn.exact,
    ids: turn.completion_token_ids,
    logprobs: turn.completion_logprobs,
    reasons: parts.map(({ end_reason: reason }) => reason),
    starts: parts.map(({ start }) => start),
    requests: new Set(parts.map(({ request_id: id }) => id)).size,
    counted: [prompt, completion],
  }
  t.strictSame(actual, expectedTurn({ turn, parts, reasons }), message)
}
