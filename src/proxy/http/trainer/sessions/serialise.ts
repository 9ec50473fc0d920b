/** Converts stored sessions and turns to the JSON of the sessions API. */
import type { Static } from 'typebox'
import { getTextsUpTo } from '../../../../protocol/canonical/conversation.ts'
import { FORMER_NAMES, withFormerNames } from '../../../../protocol/schema/former-names.ts'
import { RECORD_FIELDS, type RecordField, turnFields } from '../../../../protocol/schema/turn.ts'
import { readEchoAnnotation } from '../../../session/prompts/echo-annotation.ts'
import { writePromptJson } from '../../../session/prompts/prompt-chunks.ts'
import { AgentRoleFinder, type AgentRoleMatch } from '../../../session/roles/agent-role-finder.ts'
import { readSamplingParams } from '../../../session/state/turn-allocation.ts'
import { rejectPartial } from '../../../session/trajectories/reject-partial.ts'
import { isTrace } from '../../../session/trajectories/traces.ts'
import type { ExclusionCounts, Trajectory } from '../../../session/trajectories/trajectories.ts'
import type { TurnSampling } from '../../../session/turn/sampling.ts'
import { NO_MARKS, type SessionMarks } from '../../../store/port/marks.ts'
import type { SessionRecord, TurnOutline, TurnReader, TurnRecord } from '../../../store/port/turn-store.ts'
import { openObject, writeMember, writeNumbers, writeTexts } from './json-stream.ts'
import { RequestHistory, type RequestOverlap } from './request-history.ts'
import type { Session } from './schemas.ts'

const STORED_NAMES = [FORMER_NAMES.agent_role, FORMER_NAMES.recovered_at_index]

/** The fields of a turn that are not JSON texts, which are written first. Fields without `recorded` are computed. */
const PLAIN_FIELDS = Object.keys(turnFields)
  .map((name) => ({ name, recorded: RECORD_FIELDS.find((field) => field.name === name) }))
  .filter(({ recorded }) => recorded?.form === undefined || recorded.form === 'time')

const FIRST_JSON_FIELDS = ['tools', 'params', 'tool_calls', 'stop_reason', 'usage', 'annotations']

/** The fields of a turn that are stored as JSON texts, in the order of the response. */
const JSON_FIELDS = RECORD_FIELDS.filter(({ form }) => form === 'json').sort(
  (one, other) => getJsonPosition(one) - getJsonPosition(other),
)

function getJsonPosition({ name }: RecordField): number {
  const position = FIRST_JSON_FIELDS.indexOf(name)
  return position === -1 ? FIRST_JSON_FIELDS.length : position
}

const toSeconds = (ms: number) => ms / 1000
const toSecondsOrNull = (ms: number | null) => (ms === null ? null : toSeconds(ms))

export function sessionToWire(session: SessionRecord): Static<typeof Session> {
  return withFormerNames({
    session_id: session.sessionId,
    status: session.status,
    completed: session.status === 'completed',
    created_at: toSeconds(session.createdAtMs),
    updated_at: toSeconds(session.updatedAtMs),
    ended_at: toSecondsOrNull(session.endedAtMs),
    ttl_s: toSecondsOrNull(session.ttlMs),
    metadata: session.metadata,
    sampling_params: readSamplingParams(session),
    trust_agent: session.trustAgent,
    record: session.record && [...session.record],
    policy: session.policies,
    edited_calls: session.editedCalls,
    continue_responses: session.continueResponses,
    limits: session.limits,
    reward: session.reward?.reward ?? null,
    reward_components: session.reward?.components ?? {},
    reward_agent_roles: session.reward?.lines ?? {},
    reward_turns: session.reward?.turns ?? {},
    labels: session.marks.labels,
    note: session.marks.note,
    turn_labels: session.marks.turns,
    turn_count: session.turnCount,
    num_turns: session.turnCount,
    open_turns: session.openTurns,
    failed_turns: session.failedTurns,
    inexact_turns: session.inexactTurns,
    sampled_tokens: session.sampledTokens,
  })
}

/**
 * Yields a session with its turns, as chunks of one JSON text. One turn is in memory at a time.
 * @throws ProxyError `session_not_found` at the end, if the session was removed or reset while it was read
 */
export async function* writeSessionWithTurns(
  reader: Pick<TurnReader, 'getSession'>,
  session: SessionRecord,
  turns: AsyncIterable<TurnRecord | TurnOutline>,
  messages: 'all' | 'new' | 'none',
): AsyncGenerator<string> {
  const soFar = messages === 'new' ? new RequestHistory() : undefined
  const lines = new AgentRoleFinder()
  yield `${openObject(sessionToWire(session))},"turns":[`
  const prompts: Record<string, number> = {}
  const changed: Record<string, number> = {}
  let traceCount = 0
  let abortedTurns = 0
  let separator = ''
  for await (const turn of turns) {
    yield separator
    yield* turnToWire(turn, lines.add(turn), session.marks, messages === 'none' ? messages : soFar?.add(turn))
    separator = ','
    if (isTrace(turn)) traceCount += 1
    if (turn.status === 'aborted') abortedTurns += 1
    for (const word of listPromptLabels(turn)) prompts[word] = (prompts[word] ?? 0) + 1
    for (const kind of readEchoAnnotation(turn)?.kinds ?? []) changed[kind] = (changed[kind] ?? 0) + 1
  }
  const counts = `"prompts":${JSON.stringify(prompts)},"changed_calls":${JSON.stringify(changed)}`
  await rejectPartial(reader, session)
  yield `],"trace_count":${traceCount},${counts},"aborted_turns":${abortedTurns}}`
}

/** Returns how the prompt of a turn was built, and `mismatched` if the engine reported another prompt. */
function listPromptLabels({ annotations }: Pick<TurnRecord, 'annotations'>): string[] {
  const { prompt } = JSON.parse(annotations) as { prompt?: { reason?: string; mismatched?: boolean } }
  return [prompt?.reason ?? [], prompt?.mismatched === true ? 'mismatched' : []].flat()
}

/**
 * Yields a turn. Stored JSON texts, such as messages and tools, are sent without being parsed. The lists of tokens are
 * omitted for an outline.
 * @param marks the labels and notes of the session
 * @param parts the new parts of the request, to which the turn is limited; undefined: the whole request; `none`: no
 *   messages, tools and prompt
 */
export function* turnToWire(
  turn: TurnRecord | TurnOutline,
  { agentRole: line, rule }: AgentRoleMatch,
  marks: SessionMarks,
  parts: RequestOverlap | 'none' | undefined,
): Generator<string> {
  const isShown = parts !== 'none'
  const { messages: known, prompt: shown } = isShown && parts ? parts : {}
  const computed: Readonly<Record<string, unknown>> = {
    agent_role: line,
    agent_role_rule: rule,
    request_messages_from: known?.count,
    request_messages_of: known?.turnId,
    prompt_of: shown?.turnId,
    latency_ms: turn.endedAtMs === null ? null : turn.endedAtMs - turn.startedAtMs,
  }
  const values = PLAIN_FIELDS.flatMap(({ name, recorded }) => {
    if (recorded !== undefined) return [[name, plainToWire(turn, recorded)]]
    return name in computed ? [[name, computed[name]]] : []
  })
  yield openObject(
    withFormerNames({ ...Object.fromEntries(values), ...(marks.turns[turn.index] ?? NO_MARKS) }),
  )
  const texts = getTextsUpTo(isShown ? turn.lastMessage : undefined, known?.count)
  yield* writeMember('request_messages', writeTexts(texts))
  const prompt = isShown ? (shown?.pieces ?? turn.promptPieces) : []
  for (const { name, property, whenNull = 'null' } of JSON_FIELDS) {
    const text = (turn as unknown as Readonly<Record<string, string | null>>)[property] ?? whenNull
    if (name === 'tools') yield* writeMember(name, [isShown ? text : whenNull])
    else if (name === 'params') yield* writeMember(name, paramsToWire(text, prompt))
    else if (name === 'annotations') yield* writeMember(name, [annotationsToWire(text)])
    else yield* writeMember(name, [text])
  }
  if ('promptTokenIds' in turn) yield* writeTurnTokens(turn)
  yield '}'
}

/** Returns the value of a field that is not a JSON text. */
function plainToWire(turn: object, { property, form, whenNull }: RecordField): unknown {
  const value = (turn as Readonly<Record<string, unknown>>)[property] ?? whenNull ?? null
  return form === 'time' ? toSecondsOrNull(value as number | null) : value
}

/** Returns annotations with their present names in addition to the former names under which they are stored. */
export function annotationsToWire(stored: string): string {
  if (!STORED_NAMES.some((name) => stored.includes(`"${name}"`))) return stored
  const { line, resumed_at } = JSON.parse(stored) as { line?: object; resumed_at?: number }
  const present = JSON.stringify({ agent_role: line, recovered_at_index: resumed_at })
  // The text is extended instead of serialized again, because parsing would round large numbers.
  return present === '{}' ? stored : `${stored.slice(0, -1)},${present.slice(1)}`
}

function* writeTurnTokens(turn: TurnRecord): Generator<string> {
  yield* writeMember('prompt_token_ids', writeNumbers(turn.promptTokenIds))
  yield* writeMember('completion_token_ids', writeNumbers(turn.completionTokenIds))
  yield* writeMember('completion_logprobs', writeNumbers(turn.completionLogprobs))
}

/** Yields the parameters of a request, with its prompt if it has one. */
function* paramsToWire(params: string, prompt: readonly string[]): Generator<string> {
  if (prompt.length === 0) return yield params
  yield params === '{}' ? '{"prompt":' : `${params.slice(0, -1)},"prompt":`
  yield* writePromptJson(prompt)
  yield '}'
}

/** A row and its details. */
export interface RowView {
  row: Trajectory
  /** The details as members of a JSON object, each preceded by a comma. */
  details: AsyncIterable<string>
  /** Returns the sampling parameters of a turn, if they were requested. */
  sampling(turnId: string): TurnSampling | undefined
}

/** Yields a session with its trajectories, as chunks of one JSON text. One row is in memory at a time. */
export async function* writeSessionWithTrajectories(
  session: SessionRecord,
  excluded: ExclusionCounts,
  rows: AsyncIterable<RowView>,
  { images, ...more }: { images?: ReadonlyMap<string, string> | undefined } & Record<string, unknown>,
): AsyncGenerator<string> {
  yield `${openObject({ ...sessionToWire(session), ...more, excluded_turns: excluded })},"trajectories":[`
  let separator = ''
  for await (const row of rows) {
    yield separator
    yield* rowToWire(row, session.status === 'completed')
    separator = ','
  }
  yield ']'
  if (images !== undefined) yield* writeMember('images', imagesToWire(images))
  yield '}'
}

function* imagesToWire(images: ReadonlyMap<string, string>): Generator<string> {
  let separator = '{'
  for (const [sha256, url] of images) {
    yield `${separator}"${sha256}":${JSON.stringify(url)}`
    separator = ','
  }
  yield images.size === 0 ? '{}' : '}'
}

/** Adds the former names of renamed fields to a row and its turns. */
export function addFormerNames<Row extends { readonly turns: readonly object[] }>(row: Row) {
  return withFormerNames({ ...row, turns: row.turns.map((turn) => withFormerNames(turn)) })
}

async function* rowToWire({ row, details, sampling }: RowView, finished: boolean): AsyncGenerator<string> {
  const { prompt_ids, response_ids, response_mask, response_logprobs, ...rest } = row
  const turns = rest.turns.map((turn) => {
    const sampled = sampling(turn.turn_id)
    return sampled ? { ...turn, sampling: sampled } : turn
  })
  yield openObject(addFormerNames({ ...rest, turns, finished }))
  const arrays = { prompt_ids, response_ids, response_mask, response_logprobs }
  for (const [name, numbers] of Object.entries(arrays)) yield* writeMember(name, writeNumbers(numbers))
  yield* details
  yield '}'
}
