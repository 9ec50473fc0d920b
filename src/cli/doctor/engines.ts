/** Checks engines through a temporary proxy: one request each, and the recorded turn. */
import { ProxyError } from '../../base/errors.ts'
import {
  EFFORT_LEVELS,
  findNearestLevel,
  REASONING_EFFORTS,
} from '../../protocol/canonical/reasoning-effort.ts'
import type { ServeConfig } from '../../proxy/config/options/serve.ts'
import { parseEndpoint } from '../../proxy/engines/clients/endpoint.ts'
import { type FirstTokens, HOT, WARM } from '../../proxy/engines/dispatch/logprobs-probe.ts'
import { NO_KEYS } from '../../proxy/http/access/keyring.ts'
import { withCause } from '../fail.ts'
import { createLogger } from '../logger.ts'
import type { SessionWithTurnsJson, TurnJson } from '../sessions/api.ts'
import { createFailure, createOkFinding, createWarning, type Finding } from './finding.ts'
import { judgeLogprobs } from './logprobs.ts'

const MESSAGES = [{ role: 'user', content: 'Say hello.' }]
const MAX_TOKENS = 8
const MASKED_TOP_K = 20
/** Limits for the connection to an engine and for its response. */
const QUEUE_WAIT_MS = 5_000
const RESPONSE_TIMEOUT_MS = 60_000

/** Checks one engine. @param url undefined: the embedded engine */
export async function checkEngine(config: ServeConfig, url: string | undefined): Promise<Finding[]> {
  const about = `engine ${url === undefined ? 'embedded' : new URL(url).host}`
  try {
    const { turn, logprobs, healthFindings } = await probeThroughProxy(config, url)
    const { prompt_token_ids: prompt, completion_token_ids: sampled, exact, inexact_reason } = turn
    if (!exact) {
      const seen = `responds, but its turns cannot be trained on: ${inexact_reason}`
      return [
        createFailure(
          about,
          seen,
          'see docs/engines.md for what an engine has to report, and how to enable it',
        ),
      ]
    }
    const from = config.tokenizer === undefined ? 'reported by the engine' : 'rendered in token mode'
    const seen = `responds with ${sampled.length} ids and logprobs; ${prompt.length} prompt ids, ${from}`
    const more = url === undefined ? [] : await checkPrompt(config, url, turn)
    return [createOkFinding(about, seen), logprobs, ...healthFindings, ...more]
  } catch (error) {
    const isOption = error instanceof ProxyError && error.code === 'config_invalid'
    if (isOption) return [createFailure('options', withCause(error), 'correct the option that it names')]
    const remedy = 'check that it runs, and that --engine-url and its key are correct'
    return [createFailure(about, withCause(error), remedy)]
  }
}

interface EngineProbe {
  turn: TurnJson
  logprobs: Finding
  /** The findings from the proxy's `/health`. */
  healthFindings: Finding[]
}

/** Sends requests to the engine through a temporary proxy with this configuration, which only this machine can reach. */
async function probeThroughProxy(config: ServeConfig, url: string | undefined): Promise<EngineProbe> {
  const { startServer } = await import('../../main.ts')
  const own = {
    mode: 'local',
    host: '127.0.0.1',
    port: 0,
    basePath: '',
    db: 'memory',
    tlsCert: undefined,
    tlsKey: undefined,
    queueWaitMs: QUEUE_WAIT_MS,
    engineUrls: url === undefined ? [] : [url],
    strictSessions: false,
    ...NO_KEYS,
  } as const
  const server = await startServer({ ...config, ...own }, { logger: createLogger('silent') })
  try {
    // A sampling mask requires a bounded top_k.
    const masks = config.record.includes('sampling_mask') ? { top_k: MASKED_TOP_K } : {}
    const { data = [] } = (await (await fetch(`${server.url}/doctor/v1/models`)).json()) as ModelList
    const model = data[0]?.id ?? 'default'
    const turn = await getRecordedTurn(server.url, 'doctor', { model, ...masks })
    const [warm, hot] = [
      await readFirstTokens(server.url, model, WARM),
      await readFirstTokens(server.url, model, HOT),
    ]
    const logprobs = judgeLogprobs(warm, hot, config.logprobsMode)
    return { turn, logprobs, healthFindings: await readHealthFindings(server.url, data[0]?.max_model_len) }
  } finally {
    await server.stop(0)
  }
}

/**
 * Returns the findings from `/health`: the warnings, the prompt encoder, the roles and the reasoning efforts; and a
 * warning if the engine serves less context than the model has.
 * @param served the context length that the engine reports, in tokens
 */
async function readHealthFindings(proxyUrl: string, served = Number.POSITIVE_INFINITY): Promise<Finding[]> {
  const health = (await (await fetch(`${proxyUrl}/health`)).json()) as {
    engines?: { warning?: string }[]
    tool_parser?: { warning?: string }
    prompt_format?: { encoder?: { file: string; sha256: string }; roles?: PromptRoles }
    reasoning_efforts?: EffortReport
    context_length?: number
  }
  const encoder = health.prompt_format?.encoder
  const less = (health.engines ?? []).flatMap(({ warning: text }) => text ?? [])
  const found = less.map((text) => createWarning('engine', text, 'see docs/engines.md'))
  const unread = health.tool_parser?.warning
  if (unread !== undefined)
    found.push(createWarning('tool calls', unread, 'see docs/token-mode.md for the formats'))
  if (encoder !== undefined)
    found.push(
      createOkFinding('prompt encoder', `${encoder.file} writes the prompts, SHA-256 ${encoder.sha256}`),
    )
  const source = encoder === undefined ? 'the chat template' : 'the prompt encoder'
  const roles = health.prompt_format?.roles
  if (roles !== undefined) found.push(createOkFinding('roles', describeRoles(source, roles)))
  if (health.reasoning_efforts !== undefined) {
    found.push(createOkFinding('reasoning efforts', describeEfforts(source, health.reasoning_efforts)))
  }
  if (health.context_length === undefined || served >= health.context_length) return found
  const seen = `the engine serves ${served} tokens, and the model has ${health.context_length}`
  return [
    ...found,
    createWarning('context', seen, `give --context-length ${served}, or enlarge the engine's context`),
  ]
}

interface PromptRoles {
  developer: string
  later_system: string
}

function describeRoles(source: string, { developer, later_system: laterSystem }: PromptRoles): string {
  const changes = [
    ...(developer === 'developer' ? [] : [`developer messages become ${developer} messages`]),
    ...(laterSystem === 'system'
      ? []
      : [`system messages after the beginning become ${laterSystem} messages`]),
  ]
  return changes.length === 0
    ? `${source} renders every role`
    : `${source} does not render every role: ${changes.join(', ')}`
}

interface EffortReport {
  accepted: string[]
  read: boolean
}

function describeEfforts(source: string, { accepted, read }: EffortReport): string {
  if (!read) return `${source} ignores reasoning_effort`
  if (accepted.length === REASONING_EFFORTS.length) return `${source} accepts every reasoning_effort`
  const nearest = EFFORT_LEVELS.filter((level) => !accepted.includes(level)).flatMap((level) => {
    const sent = findNearestLevel(level, (other) => accepted.includes(other))
    return sent === undefined ? [] : [`${level} becomes ${sent}`]
  })
  const list = accepted.join(', ') || 'none of the known efforts'
  return `${source} accepts ${[list, ...nearest].join('; ')}`
}

interface ModelList {
  data?: { id: string; max_model_len?: number }[]
}

interface ChatResponse {
  error?: { message: string }
  choices?: {
    logprobs?: { content?: { top_logprobs?: { token: string; logprob: number }[] }[] | null } | null
  }[]
}

function sendChat(proxyUrl: string, session: string, more: object): Promise<Response> {
  return fetch(`${proxyUrl}/${session}/v1/chat/completions`, {
    method: 'POST',
    headers: { 'content-type': 'application/json' },
    body: JSON.stringify({ messages: MESSAGES, max_tokens: MAX_TOKENS, ...more }),
    signal: AbortSignal.timeout(RESPONSE_TIMEOUT_MS),
  })
}

async function readFirstTokens(
  proxyUrl: string,
  model: string,
  sampling: typeof WARM | typeof HOT,
): Promise<FirstTokens> {
  const response = await sendChat(proxyUrl, `doctor-${sampling.temperature}`, { model, ...sampling })
  const { choices } = (await response.json()) as ChatResponse
  const listed = choices?.[0]?.logprobs?.content?.[0]?.top_logprobs ?? []
  return new Map(listed.map(({ token, logprob }) => [token, logprob]))
}

async function getRecordedTurn(proxyUrl: string, session: string, more: object): Promise<TurnJson> {
  const response = await sendChat(proxyUrl, session, more)
  const answer = (await response.json()) as ChatResponse
  if (!response.ok) throw new Error(answer.error?.message ?? `status ${response.status}`)
  const { turns } = (await (await fetch(`${proxyUrl}/sessions/${session}`)).json()) as SessionWithTurnsJson
  return turns[0]!
}

/** The largest tolerated difference between two clocks: beyond it, times of two machines are hard to compare. */
const MAX_CLOCK_OFFSET_MS = 5_000

/** Compares the prompt with the engine's `/tokenize`, if it exists, and the engine's clock with the local one. */
async function checkPrompt(config: ServeConfig, url: string, turn: TurnJson): Promise<Finding[]> {
  const { origin, basePath, authorization } = parseEndpoint(url, config.engineApiKey)
  const sentAtMs = Date.now()
  const response = await fetch(`${origin}${basePath}/tokenize`, {
    method: 'POST',
    headers: { 'content-type': 'application/json', ...(authorization !== undefined && { authorization }) },
    body: JSON.stringify({ model: turn.model, messages: MESSAGES, add_generation_prompt: true }),
    signal: AbortSignal.timeout(RESPONSE_TIMEOUT_MS),
  })
  const date = response.headers.get('date')
  // The clocks agree if the date lies between sending and now, so that a slow response does not count as an offset.
  const engineMs = date === null ? sentAtMs : Date.parse(date)
  const offsetMs = Math.max(sentAtMs - engineMs, engineMs - Date.now())
  const clock =
    offsetMs > MAX_CLOCK_OFFSET_MS
      ? [
          createWarning(
            'clock',
            `${Math.round(offsetMs / 1_000)} s apart from the engine's`,
            'synchronise both by NTP',
          ),
        ]
      : []
  if (config.tokenizer === undefined) return clock
  const tokens = await readTokens(response)
  if (tokens === undefined) {
    const seen = 'the engine has no /tokenize with which to compare prompts'
    return [
      ...clock,
      createWarning('token mode', seen, 'record a turn and compare it: llm-proxy verify, docs/verify.md'),
    ]
  }
  const differs = describeDifference(turn.prompt_token_ids, tokens)
  if (differs !== undefined) {
    return [...clock, createFailure('token mode', differs, "give --tokenizer the engine's own model")]
  }
  return [...clock, createOkFinding('token mode', `the same ${tokens.length} prompt ids as the engine's own`)]
}

/** Returns the token ids of a response; undefined if there are none. */
async function readTokens(response: Response): Promise<number[] | undefined> {
  const { tokens } = (await response.json().catch(() => ({}))) as { tokens?: number[] }
  return response.ok ? tokens : undefined
}

function describeDifference(ours: readonly number[], engines: readonly number[]): string | undefined {
  const isOther = (id: number, index: number) => id !== ours[index]
  if (ours.length === engines.length && !engines.some(isOther)) return undefined
  const other = engines.findIndex(isOther)
  const i = other === -1 ? engines.length : other
  const ids = `${ours[i] ?? 'end of prompt'} here, ${engines[i] ?? 'end of prompt'} there`
  return `prompt ids differ from the engine's (${ours.length} vs ${engines.length}), first at position ${i + 1} (${ids})`
}
