/** Writes turns as traces of the second model-gateway contract, in chunks of JSON text. */
import { getTextsUpTo } from '../../../../protocol/canonical/conversation.ts'
import { writePromptJson } from '../../../session/prompts/prompt-chunks.ts'
import type { TurnTrace } from '../../../session/trajectories/traces.ts'
import type { SessionRecord, TurnRecord } from '../../../store/port/turn-store.ts'
import { openObject, writeMember, writeNumbers, writeTexts } from '../sessions/json-stream.ts'
import { getExactTokens, parseInteger } from '../traces/serialise.ts'

/** Yields a session with its completed turns. One turn is in memory at a time. */
export async function* sessionTracesToWire(
  { sessionId, createdAtMs }: Pick<SessionRecord, 'sessionId' | 'createdAtMs'>,
  turns: AsyncIterable<TurnTrace>,
): AsyncGenerator<string> {
  yield `${openObject({ session_id: sessionId, created_at: createdAtMs / 1_000 })},"traces":[`
  let separator = ''
  for await (const traced of turns) {
    yield separator
    yield* writeGatewayTrace(traced)
    separator = ','
  }
  yield ']}'
}

function* writeGatewayTrace({ turn, lineage }: TurnTrace): Generator<string> {
  yield openObject({
    lineage: { parent_request_id: lineage.parent?.turnId ?? null, root_request_id: lineage.root },
    started_at: turn.startedAtMs / 1_000,
    completed_at: (turn.endedAtMs ?? turn.startedAtMs) / 1_000,
  })
  yield* writeMember('request', writeRequest(turn))
  yield* writeMember('response', writeResponse(turn))
  yield* writeMember('input', writeInput(turn))
  yield* writeMember('output', writeOutput(turn))
  yield '}'
}

/** Yields the request with exactly one of messages, prompt and prompt_token_ids, which rLLM's client requires. */
function* writeRequest({ turnId, sessionId, lastMessage, promptPieces, tools, params }: TurnRecord) {
  yield openObject({ request_id: turnId, session_id: sessionId })
  yield* writeMember('messages', writeTexts(getTextsUpTo(lastMessage)))
  const prompt = promptPieces.length === 0 ? ['null'] : [...writePromptJson(promptPieces)]
  const isIds = prompt[0]!.startsWith('[')
  yield* writeMember('prompt', isIds ? ['null'] : prompt)
  yield* writeMember('prompt_token_ids', isIds ? prompt : ['null'])
  yield* writeMember('tools', [tools ?? '[]'])
  yield* writeMember('sampling_params', [params])
  yield '}'
}

function* writeResponse(turn: TurnRecord): Generator<string> {
  yield openObject({
    request_id: turn.turnId,
    text: turn.completionText ?? '',
    content: turn.completionText,
    reasoning_content: turn.reasoning,
    finish_reason: turn.finishReason,
    prompt_tokens: turn.promptTokenIds.length,
    completion_tokens: turn.completionTokenIds.length,
  })
  yield* writeMember('tool_calls', [turn.toolCalls])
  yield '}'
}

function* writeInput(turn: TurnRecord): Generator<string> {
  yield openObject({ routing_key: turn.sessionId })
  yield* writeMember('prompt_token_ids', writeNumbers(getExactTokens(turn).promptTokenIds))
  yield* writeMember('sampling_params', [turn.params])
  yield '}'
}

function* writeOutput(turn: TurnRecord): Generator<string> {
  const { exact, inexactReason, engine, dialect, index, weightVersionStart, weightVersionEnd } = turn
  yield openObject({
    routed_experts: null,
    finish_reason: turn.finishReason,
    // The client does not accept null here.
    weight_version: parseInteger(weightVersionStart) ?? 0,
    metadata: {
      index,
      dialect,
      engine,
      exact,
      inexact_reason: inexactReason,
      weight_version_start: weightVersionStart,
      weight_version_end: weightVersionEnd,
    },
  })
  const { completionTokenIds, completionLogprobs } = getExactTokens(turn)
  yield* writeMember('completion_token_ids', writeNumbers(completionTokenIds))
  yield* writeMember('logprobs', writeNumbers(completionLogprobs))
  yield '}'
}
