/** Compares the sessions recorded by a proxy with what the engine's core received and sampled. */
import type { AgentOutput } from './agents.ts'
import type { CoreCall, CoreLog } from './core-log.ts'

// biome-ignore lint/suspicious/noExplicitAny: answers of the sessions API are read as their readers do
type Json = any

/** A request that an agent sent, and what it parsed from the response. */
export interface MadeCall {
  dialect: string
  stream: boolean
  response: AgentOutput
}

/** Result of a check: one line per mismatch in `wrong`. */
export interface Verdict {
  turns: number
  tokens: number
  /** Number of turns with an unknown weight version. */
  unversioned: number
  wrong: string[]
}

interface Strictness {
  /** Accepts turns with unknown weights: a busy machine misses health checks of its engine. */
  mayNotKnowWeights?: boolean
}

/** Tolerance for a logprob, which passes through JSON and a 32-bit float. */
const NEAR = 1e-6

export async function checkSession(
  url: string,
  sessionId: string,
  made: readonly MadeCall[],
  core: Pick<CoreLog, 'find'>,
  { mayNotKnowWeights = false }: Strictness = {},
): Promise<Verdict> {
  const id = encodeURIComponent(sessionId)
  const { turns } = await getJson(`${url}/sessions/${id}`)
  const { trajectories: rows } = await getJson(`${url}/sessions/${id}/trajectories?details=sampling`)
  const wrong: string[] = []
  const verdict = { turns: turns.length, tokens: 0, unversioned: 0, wrong }
  const note = (turn: Json, what: string) =>
    wrong.push(`${sessionId} #${turn.index} (${turn.dialect}): ${what}`)
  if (turns.length !== made.length) wrong.push(`${sessionId}: ${made.length} calls, ${turns.length} turns`)
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
    const fits = (call: CoreCall) => againstParams(sampling, call).next().done === true
    const sampled = core.find(turn.prompt_token_ids, turn.completion_token_ids, fits)
    if (sampled === undefined) note(turn, `ids that were never sampled: ${turn.completion_token_ids}`)
    else {
      for (const what of againstCore(turn, sampled)) note(turn, what)
      const weights = getWeights(turn, sampled)
      if (weights.isUnknown) verdict.unversioned += 1
      if (weights.wrong !== undefined && !(weights.isUnknown && mayNotKnowWeights)) note(turn, weights.wrong)
      for (const what of againstParams(sampling, sampled)) note(turn, what)
    }
    if (made[at]) for (const what of compareWithReported(turn, made[at])) note(turn, what)
  }
  wrong.push(...checkRows(turns, rows).map((what) => `${sessionId}: ${what}`))
  return verdict
}

/** @throws Error with the response body, unless the status is a success */
export async function getJson(url: string, tries = 3): Promise<Json> {
  const response = await fetch(url).catch((error: Error) => error)
  // Retried as SDKs do: an idle connection may be closed, with 408 or without a response, just as it is reused.
  const isUnread = response instanceof Error || response.status === 408
  if (isUnread && tries > 1) return getJson(url, tries - 1)
  if (response instanceof Error) throw response
  if (!response.ok) throw new Error(`${url}: ${response.status} ${await response.text()}`)
  return response.json()
}

function* againstCore(turn: Json, sampled: CoreCall): Generator<string> {
  const { completion_token_ids: ids, completion_logprobs: logprobs, usage, finish_reason: finish } = turn
  // An abort or a stop string ends the delivered ids; all ids that were sampled and delivered are recorded.
  if (ids.length !== sampled.ids.length)
    yield `${ids.length} ids of the ${sampled.ids.length} that were sampled`
  yield* differences('a logprob', logprobs, sampled.logprobs.slice(0, ids.length))
  if (usage.completion_tokens !== ids.length || usage.prompt_tokens !== sampled.prompt.length)
    yield `usage ${JSON.stringify(usage)} of ${sampled.prompt.length} and ${ids.length} tokens`
  // The core counts tokens. A stop string in the last of them and tool calls are found in the text by the API server.
  const mayEnd =
    sampled.finish === 'length'
      ? ['length', 'tool_calls', ...(typeof turn.stop_reason === 'string' ? ['stop'] : [])]
      : ['stop', 'tool_calls']
  if (!mayEnd.includes(finish)) yield `ended by ${finish}, the core by ${sampled.finish}`
}

function getWeights(turn: Json, { weights }: CoreCall): { isUnknown: boolean; wrong?: string } {
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
function* againstParams(sampling: Json, { params }: CoreCall): Generator<string> {
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

function* compareWithReported(turn: Json, { dialect, stream, response }: MadeCall): Generator<string> {
  const how = stream ? 'streamed' : 'whole'
  const isBlank = dialect === 'messages' && turn.completion_text.trim() === '' && response.text === ''
  if (response.text !== turn.completion_text && !isBlank)
    yield `${how}: text ${quote(response.text)}, recorded ${quote(turn.completion_text)}`
  if (dialect === 'completions') return
  const { reasoning_content: reasoning } = turn
  if (response.reasoning !== (reasoning ?? ''))
    yield `${how}: reasoning ${quote(response.reasoning)}, recorded ${quote(reasoning)}`
  // Some dialects have arguments as an object, so that spaces and duplicate keys are lost in transit.
  const hasObjects = dialect === 'messages' || dialect === 'gemini'
  const show = (called: { name: string; arguments: string }[]) =>
    quote(called.map((each) => (hasObjects ? each.name : [each.name, each.arguments])))
  const recorded = show(turn.tool_calls.map((call: Json) => call.function))
  if (show(response.calls) !== recorded) yield `${how}: calls ${show(response.calls)}, recorded ${recorded}`
}

/** Checks that rows contain what turns saw and sampled, and that each sampled token is trained once. */
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
        wrong.push(`a row is not what turn ${turn.index} saw and sampled`)
      if (!part.trained) continue
      trained.set(part.turn_id, (trained.get(part.turn_id) ?? 0) + 1)
      mask.fill(1, part.start, part.end)
      logprobs.splice(part.start, ids.length, ...turn.completion_logprobs)
    }
    if (mask.join() !== row.response_mask.join()) wrong.push('a mask is not on what was sampled')
    wrong.push(...differences('a logprob of a row', row.response_logprobs, logprobs))
  }
  for (const { turn_id, index, exact, status, completion_token_ids: ids } of turns) {
    const times = trained.get(turn_id) ?? 0
    if (exact && status === 'completed' && ids.length > 0 && times !== 1)
      wrong.push(`turn ${index} trains ${times} times`)
  }
  return wrong
}

function* differences(what: string, seen: readonly number[], expected: readonly number[]): Generator<string> {
  if (seen.length !== expected.length) yield `${what}: ${seen.length} of ${expected.length}`
  const i = expected.findIndex(
    (value, index) => !(Math.abs(value - seen[index]!) <= NEAR * Math.max(1, -value)),
  )
  if (i !== -1) yield `${what} at ${i} is ${seen[i]}, and was ${expected[i]}`
}

function quote(value: unknown): string {
  return JSON.stringify(value)?.slice(0, 300)
}
