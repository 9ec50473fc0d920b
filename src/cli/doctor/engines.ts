/** What engines answer, seen through a proxy that is made for it: a call each, and what was recorded of it. */
import type { ServeConfig } from '../../proxy/config/options/serve.ts'
import { parseEndpoint } from '../../proxy/engines/clients/endpoint.ts'
import { NO_KEYS } from '../../proxy/http/access/keyring.ts'
import { createLogger } from '../logger.ts'
import type { SessionWithTurnsJson, TurnJson } from '../sessions/api.ts'
import { type Finding, failure, ok, warning } from './finding.ts'
import { messageOf } from './machine.ts'

const MESSAGES = [{ role: 'user', content: 'Say hello.' }]
const MAX_TOKENS = 8
/** How long an engine may be out of reach, and how long it may take to answer. */
const WAIT_MS = 5_000
const ANSWER_MS = 60_000

/** @param url undefined: the embedded one */
export async function lookAtEngine(config: ServeConfig, url: string | undefined): Promise<Finding[]> {
  const about = `engine ${url === undefined ? 'embedded' : new URL(url).host}`
  try {
    const turn = await callThrough(config, url)
    const { prompt_token_ids: prompt, completion_token_ids: sampled, exact, inexact_reason } = turn
    if (!exact) {
      const seen = `answers, but its turns cannot be trained on: ${inexact_reason}`
      return [
        failure(about, seen, 'see docs/engines.md for what an engine has to tell, and how it is switched on'),
      ]
    }
    const from = config.tokenizer === undefined ? 'reported by the engine' : 'made in token mode'
    const seen = `answers with ${sampled.length} ids and logprobs; ${prompt.length} prompt ids, ${from}`
    const more = url === undefined ? [] : await lookAtWords(config, url, turn)
    return [ok(about, seen), ...more]
  } catch (error) {
    return [failure(about, messageOf(error), 'see that it runs, and that --engine-url and its key are right')]
  }
}

/** One call through a proxy of these options that nobody else can reach. */
async function callThrough(config: ServeConfig, url: string | undefined): Promise<TurnJson> {
  const { startServer } = await import('../../main.ts')
  const own = {
    mode: 'local',
    host: '127.0.0.1',
    port: 0,
    basePath: '',
    db: 'memory',
    tlsCert: undefined,
    tlsKey: undefined,
    queueWaitMs: WAIT_MS,
    engineUrls: url === undefined ? [] : [url],
    strictSessions: false,
    ...NO_KEYS,
  } as const
  const server = await startServer({ ...config, ...own }, { logger: createLogger('silent') })
  try {
    const response = await fetch(`${server.url}/doctor/v1/chat/completions`, {
      method: 'POST',
      headers: { 'content-type': 'application/json' },
      body: JSON.stringify({ model: await modelOf(server.url), messages: MESSAGES, max_tokens: MAX_TOKENS }),
      signal: AbortSignal.timeout(ANSWER_MS),
    })
    const answer = (await response.json()) as { error?: { message: string } }
    if (!response.ok) throw new Error(answer.error?.message ?? `status ${response.status}`)
    const session = (await (await fetch(`${server.url}/sessions/doctor`)).json()) as SessionWithTurnsJson
    return session.turns[0]!
  } finally {
    await server.stop(0)
  }
}

async function modelOf(proxyUrl: string): Promise<string> {
  const { data } = (await (await fetch(`${proxyUrl}/doctor/v1/models`)).json()) as { data?: { id: string }[] }
  return data?.[0]?.id ?? 'default'
}

/** A clock that is further away makes times of two machines hard to read together. */
const CLOCK_OFF_MS = 5_000

/** The engine's own word on the prompt, where it has `/tokenize`, and its clock. */
async function lookAtWords(config: ServeConfig, url: string, turn: TurnJson): Promise<Finding[]> {
  const { origin, basePath, authorization } = parseEndpoint(url, config.engineApiKey)
  const askedAtMs = Date.now()
  const response = await fetch(`${origin}${basePath}/tokenize`, {
    method: 'POST',
    headers: { 'content-type': 'application/json', ...(authorization !== undefined && { authorization }) },
    body: JSON.stringify({ model: turn.model, messages: MESSAGES, add_generation_prompt: true }),
    signal: AbortSignal.timeout(ANSWER_MS),
  })
  const date = response.headers.get('date')
  // It was written between the two; a slow answer is no clock that is wrong.
  const saidMs = date === null ? askedAtMs : Date.parse(date)
  const offMs = Math.max(askedAtMs - saidMs, saidMs - Date.now())
  const clock =
    offMs > CLOCK_OFF_MS
      ? [warning('clock', `${Math.round(offMs / 1_000)} s apart from the engine's`, 'set both by NTP')]
      : []
  if (config.tokenizer === undefined) return clock
  const { tokens } = (await response.json().catch(() => ({}))) as { tokens?: number[] }
  if (!response.ok || tokens === undefined) {
    const seen = 'the engine has no /tokenize to compare prompts with'
    return [...clock, warning('token mode', seen, 'compare a prompt by hand: docs/token-mode.md')]
  }
  const isSame = JSON.stringify(tokens) === JSON.stringify(turn.prompt_token_ids)
  const seen = isSame
    ? `the same ${tokens.length} prompt ids as the engine's own`
    : `other prompt ids than the engine's own: ${turn.prompt_token_ids.length} and ${tokens.length}`
  return [
    ...clock,
    isSame ? ok('token mode', seen) : failure('token mode', seen, "give --tokenizer the engine's own model"),
  ]
}
