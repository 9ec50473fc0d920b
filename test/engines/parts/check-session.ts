/** Compares the recorded sessions of a proxy with the requests and samples of the engine's core. */
import type { AgentOutput } from './agents.ts'
import type { CoreLog, CoreRequest } from './core-log.ts'

// biome-ignore lint/suspicious/noExplicitAny: the tests read responses of the sessions API as trainers do
type Json = any

/** A request that an agent sent, and what it parsed from the response. */
export interface SentRequest {
  dialect: string
  stream: boolean
  response: AgentOutput
}

/** Result of a check. */
export interface Verdict {
  turns: number
  tokens: number
  /** Number of turns with an unknown weight version. */
  unversioned: number
  /** One line per mismatch. */
  wrong: string[]
}

interface Strictness {
  /** Accepts turns with unknown weights, because a busy machine misses health checks of its engine. */
  allowsUnknownWeights?: boolean
}

/** Tolerance for a logprob, which passes through JSON and a 32-bit float. */
const NEAR = 1e-6

export async function checkSession(
  url: string,
  sessionId: string,
  sent: readonly SentRequest[],
  core: Pick<CoreLog, 'find'>,
  { allowsUnknownWeights = false }: Strictness = {},
): Promise<Verdict> {
  const id = encodeURIComponent(sessionId)
  const { turns } = await getJson(`${url}/sessions/${id}`)
  const { trajectories: rows } = await getJson(`${url}/sessions/${id}/trajectories?details=sampling`)
  const wrong: string[] = []
  const verdict = { turns: turns.length, tokens: 0, unversioned: 0, wrong }
  const note = (turn: Json, what: string) =>
    wrong.push(`${sessionId} #${turn.index} (${turn.dialect}): ${what}`)
  if (turns.length !== sent.length) wrong.push(`${sessionId}: ${sent.length} requests, ${turns.length} turns`)
  const samplings = new Map(
    rows.flatMap((row: Json) => row.turns.map((part: Json) => [part.turn_id, part.sampling])),
  )
  for (const [at, turn] of turns.entries()) {
    if (turn.status !== 'completed' || !turn.exact) {
      note(turn, `${turn.status}: ${turn.inexact_reason} ${JSON.stringify(turn.error)}`)
      continue
    }
    verdict.tokens += turn.completion_token_ids.length
    const sampling = samplings.get(turn.turn_id)
    const fits = (request: CoreRequest) => compareParams(sampling, request).next().done === true
    const sampled = core.find(turn.prompt_token_ids, turn.completion_token_ids, fits)
    if (sampled === undefined) note(turn, `ids that were never sampled: ${turn.completion_token_ids}`)
    else {
      for (const what of compareWithCore(turn, sampled)) note(turn, what)
      const weights = compareWeights(turn, sampled)
      if (weights.isUnknown) verdict.unversioned += 1
      if (weights.wrong !== undefined && !(weights.isUnknown && allowsUnknownWeights))
        note(turn, weights.wrong)
      for (const what of compareParams(sampling, sampled)) note(turn, what)
    }
    if (sent[at]) for (const what of compareWithReceived(turn, sent[at])) note(turn, what)
  }
  wrong.push(...checkRows(turns, rows).map((what) => `${sessionId}: ${what}`))
  return verdict
}

/** @throws Error with the response body, unless the status is a success */
export async function getJson(url: string, attempts = 3): Promise<Json> {
  const response = await fetch(url).catch((error: Error) => error)
  // SDKs retry, too: the server may close an idle connection, with 408 or without a response, just as it is reused.
  const mayRetry = response instanceof Error || response.status === 408
  if (mayRetry && attempts > 1) return getJson(url, attempts - 1)
  if (response instanceof Error) throw response
  if (!response.ok) throw new Error(`${url}: ${response.status} ${await response.text()}`)
  return response.json()
}

function* compareWithCore(turn: Json, sampled: CoreRequest): Generator<string> {
  const { completion_token_ids: ids, completion_logprobs: logprobs, usage, finish_reason: finish } = turn
  // The turn records all ids that the core delivered, up to an abort or a stop string.
  if (ids.length !== sampled.ids.length)
    yield `${ids.length} ids of the ${sampled.ids.length} that were sampled`
  yield* differences('a logprob', logprobs, sampled.logprobs.slice(0, ids.length))
  if (usage.completion_tokens !== ids.length || usage.prompt_tokens !== sampled.prompt.length)
    yield `usage ${JSON.stringify(usage)} of ${sampled.prompt.length} and ${ids.length} tokens`
  // The core counts tokens. The API server finds a stop string in the last of them, and tool calls, in the text.
  const allowedReasons =
    sampled.finish === 'length'
      ? ['length', 'tool_calls', ...(typeof turn.stop_reason === 'string' ? ['stop'] : [])]
      : ['stop', 'tool_calls']
  if (!allowedReasons.includes(finish)) yield `ended by ${finish}, the core by ${sampled.finish}`
}

function compareWeights(turn: Json, { weights }: CoreRequest): { isUnknown: boolean; wrong?: string } {
  const versions = [turn.weight_version_start, turn.weight_version_end]
  const used = [weights[0] ?? null, weights.at(-1) ?? null]
  const differing = versions
    .map((version, index) => [version, used[index]])
    .filter(([version, by]) => version !== by)
  if (turn.completion_token_ids.length === 0 || differing.length === 0) return { isUnknown: false }
  const wrong = `weights ${versions}, sampled by ${used}`
  return { isUnknown: differing.every(([version]) => version === null), wrong }
}

/** Compares the recorded sampling parameters, which a trainer uses for corrections, with the core's. */
function* compareParams(sampling: Json, { params }: CoreRequest): Generator<string> {
  for (const [name, value] of Object.entries<Json>(sampling?.values ?? {})) {
    const used = params[name]
    // null: a default that the engine does not report.
    if (value === null || used === undefined || value === used) continue
    // vLLM disables top_k with 0 as well as with -1.
    if (name === 'top_k' && value <= 0 && (used as number) <= 0) continue
    // At temperature 0 the core disables these.
    if (params.temperature === 0 && ['top_p', 'top_k', 'min_p'].includes(name)) continue
    yield `${name} ${value} recorded, ${used} at the core`
  }
}

function* compareWithReceived(turn: Json, { dialect, stream, response }: SentRequest): Generator<string> {
  const how = stream ? 'streamed' : 'complete'
  const isBlank = dialect === 'messages' && turn.completion_text.trim() === '' && response.text === ''
  if (response.text !== turn.completion_text && !isBlank)
    yield `${how}: text ${quote(response.text)}, recorded ${quote(turn.completion_text)}`
  if (dialect === 'completions') return
  const { reasoning_content: reasoning } = turn
  if (response.reasoning !== (reasoning ?? ''))
    yield `${how}: reasoning ${quote(response.reasoning)}, recorded ${quote(reasoning)}`
  // Some dialects send arguments as an object, which drops spaces and duplicate keys.
  const hasObjects = dialect === 'messages' || dialect === 'gemini'
  const show = (toolCalls: { name: string; arguments: string }[]) =>
    quote(toolCalls.map((each) => (hasObjects ? each.name : [each.name, each.arguments])))
  const recorded = show(turn.tool_calls.map((toolCall: Json) => toolCall.function))
  if (show(response.toolCalls) !== recorded)
    yield `${how}: tool calls ${show(response.toolCalls)}, recorded ${recorded}`
}

/** Checks that rows contain the prompts and completions of turns, and train each sampled token once. */
function checkRows(turns: readonly Json[], rows: readonly Json[]): string[] {
  const wrong: string[] = []
  const byId = new Map(turns.map((turn) => [turn.turn_id, turn]))
  const trained = new Map<string, number>()
  for (const row of rows.filter(({ exact }) => exact)) {
    const sequence = [...row.prompt_ids, ...row.response_ids]
    const mask = row.response_ids.map(() => 0)
    const logprobs = row.response_ids.map(() => 0)
    for (const part of row.turns) {
      const turn = byId.get(part.turn_id)
      const prompt = sequence.slice(0, row.prompt_ids.length + part.start)
      const ids = row.response_ids.slice(part.start, part.end)
      if (prompt.join() !== turn.prompt_token_ids.join() || ids.join() !== turn.completion_token_ids.join())
        wrong.push(`a row differs from the prompt and completion of turn ${turn.index}`)
      if (!part.trained) continue
      trained.set(part.turn_id, (trained.get(part.turn_id) ?? 0) + 1)
      mask.fill(1, part.start, part.end)
      logprobs.splice(part.start, ids.length, ...turn.completion_logprobs)
    }
    if (mask.join() !== row.response_mask.join()) wrong.push('a mask differs from the sampled tokens')
    wrong.push(...differences('a logprob of a row', row.response_logprobs, logprobs))
  }
  for (const { turn_id, index, exact, status, completion_token_ids: ids } of turns) {
    const times = trained.get(turn_id) ?? 0
    if (exact && status === 'completed' && ids.length > 0 && times !== 1)
      wrong.push(`turn ${index} is trained ${times} times`)
  }
  return wrong
}

function* differences(
  what: string,
  actual: readonly number[],
  expected: readonly number[],
): Generator<string> {
  if (actual.length !== expected.length) yield `${what}: ${actual.length} of ${expected.length}`
  const i = expected.findIndex(
    (value, index) => !(Math.abs(value - actual[index]!) <= NEAR * Math.max(1, -value)),
  )
  if (i !== -1) yield `${what} at ${i} is ${actual[i]}, expected ${expected[i]}`
}

function quote(value: unknown): string {
  return JSON.stringify(value)?.slice(0, 300)
}
