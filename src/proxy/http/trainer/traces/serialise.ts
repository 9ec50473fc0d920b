/** Writes turns as traces, in chunks of JSON text. */
import { getTextsUpTo } from '../../../../protocol/canonical/conversation.ts'
import { readSamplingParams } from '../../../session/state/turn-allocation.ts'
import type { RowLayout } from '../../../session/trajectories/row-details.ts'
import { formatTraceId, type TurnTrace } from '../../../session/trajectories/traces.ts'
import { readSampling } from '../../../session/turn/sampling.ts'
import type { TurnReader, TurnRecord } from '../../../store/port/turn-store.ts'
import { type DetailSelection, writeDetailMembers } from '../sessions/details.ts'
import { openObject, writeMember, writeNumbers, writeTexts } from '../sessions/json-stream.ts'

const NO_TOKENS = {
  promptTokenIds: new Int32Array(),
  completionTokenIds: new Int32Array(),
  completionLogprobs: new Float64Array(),
}

/** Returns the tokens of a turn, or none if its ids are not exact, so that they must not be trained on. */
export function getExactTokens(turn: TurnRecord): Pick<TurnRecord, keyof typeof NO_TOKENS> {
  return turn.exact ? turn : NO_TOKENS
}

/** The details that traces include, and the reader that loads them. */
interface TraceDetails {
  readonly reader: TurnReader
  readonly choice: DetailSelection
}

/** Yields an array of traces. One turn is in memory at a time. */
export async function* tracesToWire(
  turns: AsyncIterable<TurnTrace>,
  details: TraceDetails,
): AsyncGenerator<string> {
  yield '['
  let separator = ''
  for await (const traced of turns) {
    yield separator
    yield* traceToWire(traced, details)
    separator = ','
  }
  yield ']'
}

/**
 * Yields turns as a graph, in which each turn contains only its additions to its parent. rLLM's newer clients request
 * this form, which does not repeat prompts. A turn whose parent is not in the response is written without parent.
 */
export async function* graphToWire(
  turns: AsyncIterable<TurnTrace>,
  details: TraceDetails,
): AsyncGenerator<string> {
  yield '{"format":"compact","version":1,"deltas":['
  const seen = new Set<string>()
  let separator = ''
  for await (const traced of turns) {
    const { turn, lineage } = traced
    const parent = lineage.parent && seen.has(lineage.parent.turnId) ? lineage.parent : null
    seen.add(turn.turnId)
    const { promptTokenIds } = getExactTokens(turn)
    yield separator
    yield openObject({
      ...buildTraceFields(traced),
      parent_trace_id: parent && formatTraceId({ sessionId: turn.sessionId, turnId: parent.turnId }),
      lineage_id: lineage.root,
    })
    const newMessages = getTextsUpTo(turn.lastMessage, parent ? parent.messageCount + 1 : 0)
    yield* writeMember('messages_suffix', writeTexts(newMessages))
    yield* writeMember('prompt_ids_suffix', writeNumbers(promptTokenIds.subarray(parent?.tokenCount ?? 0)))
    yield* writeResponseMembers(turn)
    yield* writeDetails(turn, details)
    yield '}'
    separator = ','
  }
  yield ']}'
}

/** Yields a trace. Messages and tool calls are stored as JSON texts and sent without being parsed. */
export async function* traceToWire(
  traced: Omit<TurnTrace, 'lineage'>,
  details: TraceDetails,
): AsyncGenerator<string> {
  const { turn } = traced
  yield openObject(buildTraceFields(traced))
  yield* writeMember('messages', writeTexts(getTextsUpTo(turn.lastMessage)))
  yield* writeMember('prompt_token_ids', writeNumbers(getExactTokens(turn).promptTokenIds))
  yield* writeResponseMembers(turn)
  yield* writeDetails(turn, details)
  yield '}'
}

function buildTraceFields({ turn, marks }: Omit<TurnTrace, 'lineage'>) {
  const endedAtMs = turn.endedAtMs ?? turn.startedAtMs
  return {
    trace_id: formatTraceId(turn),
    session_id: turn.sessionId,
    turn_id: turn.turnId,
    model: turn.model ?? '',
    finish_reason: turn.finishReason,
    weight_version: parseInteger(turn.weightVersionStart),
    latency_ms: endedAtMs - turn.startedAtMs,
    token_counts: getTokenCounts(turn),
    timestamp: endedAtMs / 1_000,
    metadata: {
      index: turn.index,
      dialect: turn.dialect,
      engine: turn.engine,
      exact: turn.exact,
      inexact_reason: turn.inexactReason,
      weight_version_start: turn.weightVersionStart,
      weight_version_end: turn.weightVersionEnd,
      ...marks,
    },
  }
}

function* writeResponseMembers(turn: TurnRecord): Generator<string> {
  const { completionTokenIds, completionLogprobs } = getExactTokens(turn)
  yield* writeMember('response_message', buildResponseMessage(turn))
  yield* writeMember('completion_token_ids', writeNumbers(completionTokenIds))
  yield* writeMember('logprobs', writeNumbers(completionLogprobs))
}

async function* writeDetails(turn: TurnRecord, { reader, choice }: TraceDetails): AsyncGenerator<string> {
  const { sessionId } = turn
  if (turn.exact) yield* writeDetailMembers(reader, sessionId, () => getLayout(turn), choice.kinds)
  if (!choice.sampling) return
  const session = await reader.getSession(sessionId)
  yield* writeMember('sampling', [
    JSON.stringify(readSampling(turn, session ? readSamplingParams(session) : {})),
  ])
}

/** Returns the layout of a row that consists of this turn only. */
function getLayout(turn: TurnRecord): RowLayout {
  const { turnId, promptTokenIds, completionTokenIds, weightVersionStart, weightVersionEnd } = turn
  const [promptLength, completionLength] = [promptTokenIds.length, completionTokenIds.length]
  const span = { start: 0, end: completionLength }
  return {
    turns: [{ turnId, promptLength, completionLength, weightVersionStart, weightVersionEnd, ...span }],
    first: 0,
    base: promptLength,
    responseLength: completionLength,
  }
}

/**
 * Yields the message as the agent received it: `content` is empty for an empty completion and null for one with only
 * tool calls. Reasoning has both names that engines use, because trainers read either.
 */
export function* buildResponseMessage({
  completionText,
  reasoning,
  toolCalls,
}: Pick<TurnRecord, 'completionText' | 'reasoning' | 'toolCalls'>): Generator<string> {
  yield openObject({
    role: 'assistant',
    content: completionText ?? (toolCalls === '[]' ? '' : null),
    reasoning_content: reasoning ?? undefined,
    reasoning: reasoning ?? undefined,
  })
  if (toolCalls !== '[]') yield* writeMember('tool_calls', [toolCalls])
  yield '}'
}

/**
 * Returns a weight version as an integer, or null if it is none: rLLM's client would reject all traces of the session.
 */
export function parseInteger(version: string | null): number | null {
  const number = version !== null && /^-?\d+$/.test(version) ? Number(version) : null
  return Number.isSafeInteger(number) ? number : null
}

function getTokenCounts({ usage, promptTokenIds, completionTokenIds }: TurnRecord) {
  const counted: Record<string, unknown> = usage === null ? {} : JSON.parse(usage)
  const prompt = counted.prompt_tokens ?? promptTokenIds.length
  const completion = counted.completion_tokens ?? completionTokenIds.length
  return { ...(Number.isInteger(prompt) && { prompt }), ...(Number.isInteger(completion) && { completion }) }
}
