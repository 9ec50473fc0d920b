/** Compares turns with what engines sampled, and prompts with what agents had read. */
import type { Model } from '../actors/engine.ts'
import { type ChatMessage, type Generation, getContent, renderPrompt } from '../actors/oracle.ts'
import type { World } from '../world/world.ts'
import { checkParts } from './parts.ts'
import {
  getRequestKey,
  getTokenIds,
  isSame,
  type RecordedSession,
  type RecordedTurn,
  type RunFacts,
  type SessionHistory,
} from './recorded-session.ts'

export function checkTurns(
  world: World,
  expected: SessionHistory,
  { turns }: RecordedSession,
  facts: RunFacts,
): void {
  const { sessionId } = expected
  const attempts = new Map<string, number>()
  for (const { requestKey } of expected.attempts)
    attempts.set(requestKey, (attempts.get(requestKey) ?? 0) + 1)
  for (const [index, turn] of turns.entries()) {
    const requestKey = getRequestKey(turn)
    if (turn.index !== index)
      world.reportViolation(`turn ${index} of ${sessionId} has the index ${turn.index}`)
    if (turn.status === 'open')
      world.reportViolation(`the turn of ${requestKey} is open, but no request is in flight`)
    const left = attempts.get(requestKey) ?? 0
    if (left === 0) world.reportViolation(`${sessionId} has more turns of ${requestKey} than attempts`)
    attempts.set(requestKey, left - 1)
    checkTokens(world, turn, requestKey, facts)
  }
}

/** Checks that every turn is exact in a run whose engines reported all ids. */
export function checkExact(world: World, { sessionId }: SessionHistory, { turns }: RecordedSession): void {
  for (const { status, exact, index } of turns) {
    if (status === 'completed' && !exact) world.reportViolation(`turn ${index} of ${sessionId} is not exact`)
  }
}

/** Renders the prompt of a request as an engine that renders prompts itself. */
function renderEnginePrompt(
  { request_messages: messages, params }: RecordedTurn,
  { vocabulary }: Model,
): number[] {
  return params.prompt === undefined ? renderPrompt(messages) : vocabulary.encode(params.prompt)
}

function checkTokens(
  world: World,
  turn: RecordedTurn,
  requestKey: string,
  { model, isTokenMode, engines }: RunFacts,
): void {
  const { prompt_token_ids: recorded, completion_token_ids: ids, completion_logprobs: logprobs } = turn
  const isComplete = turn.status === 'completed'
  if (isComplete ? !turn.exact : ids.length === 0) return
  const isRendered = !isTokenMode || turn.params.prompt !== undefined
  if (isRendered && isComplete && !isSame(recorded, renderEnginePrompt(turn, model)))
    world.reportViolation(`the turn of ${requestKey} has the ids of another prompt`)
  const { max_tokens: limit } = turn.params
  if (limit !== undefined && ids.length > limit)
    world.reportViolation(`the turn of ${requestKey} has ${ids.length} tokens, and its limit is ${limit}`)
  const { engine_requests: parts } = turn.annotations
  if (parts !== undefined) {
    checkParts(world, { turn, requestKey, engines }, parts)
    return
  }
  const candidates = engines
    .flatMap(({ generations }) => generations)
    .filter(
      (generation) =>
        generation.requestKey === requestKey && (!isComplete || isSame(generation.prompt, recorded)),
    )
  const sampled = candidates.filter(({ tokens, length }) => {
    if (isComplete && tokens.length < length) return false
    const delivered = isComplete ? tokens : tokens.slice(0, ids.length)
    return (
      isSame(
        ids,
        delivered.map(({ id }) => id),
      ) &&
      isSame(
        logprobs,
        delivered.map(({ logprob }) => logprob),
      )
    )
  })
  const wrong = sampled.map((generation) => findWrongWeights(turn, generation))
  // Several samples may be equal. An interrupted one may lack an id that its engine did not report; no row trains it.
  if (wrong.length > 0 && wrong.every(Boolean)) world.reportViolation(`the turn of ${requestKey} ${wrong[0]}`)
  if (wrong.length === 0 && isComplete)
    world.reportViolation(
      `the turn of ${requestKey} has other ids or logprobs than any engine sampled for it`,
    )
}

/**
 * Checks weight versions. The turn must have those that the engine reported. Otherwise they may be unknown or outdated,
 * but never newer than those that sampled it.
 */
function findWrongWeights(
  { status, weight_version_start: start, weight_version_end: end }: RecordedTurn,
  { weights, versions, reports }: Generation,
): string | undefined {
  const first = weights[0]!
  const last = weights.at(-1)
  const mayStart = start === null || versions.indexOf(start) <= versions.indexOf(first)
  if (reports.start ? start !== first : !mayStart)
    return `started with weights ${first}, but its record has ${start}`
  if (status === 'completed' && reports.end && end !== last)
    return `ended with weights ${last}, but its record has ${end}`
  return undefined
}

/**
 * Checks prompts that the proxy built. Such a prompt continues the completion that the agent read: it begins with the
 * ids of that turn, whatever the agent changed in its echo, and ends with the new messages. It does not continue the
 * completion if the agent has cut something.
 */
export function checkPrompts(
  world: World,
  { attempts }: SessionHistory,
  { turns }: RecordedSession,
  { decode }: Model,
): void {
  const attemptById = new Map(attempts.map((attempt) => [attempt.turnId, attempt]))
  for (const turn of turns) {
    const { request_messages: messages, prompt_token_ids: prompt, index } = turn
    if (turn.status !== 'completed' || !turn.exact || messages.length === 0) continue
    // Clients trim their echoes; the prompt still has the sampled tokens.
    if (
      !messages.some(({ tool_calls: calls }) => calls) &&
      getConversationText(decode(prompt)) !== renderChat(messages)
    )
      world.reportViolation(`the prompt of turn ${index} differs from its messages`)
    const { continuedTurnId, isEdited } = attemptById.get(turn.turn_id) ?? {}
    const before = turns.find(({ turn_id: id }) => id === continuedTurnId)
    if (before?.status !== 'completed' || !before.exact) continue
    const past = getTokenIds(before)
    const continues = isSame(past, prompt.slice(0, past.length))
    if (continues === isEdited)
      world.reportViolation(
        `the prompt of turn ${index} ${continues ? 'continues' : 'does not continue'} turn ${before.index}, ` +
          `of which its agent has cut ${isEdited ? 'something' : 'nothing'}`,
      )
    const newMessages = messages.slice(messages.findLastIndex(({ role }) => role === 'assistant') + 1)
    const isNew =
      getConversationText(decode(prompt.slice(past.length))).replace(/^<\|im_end\|>/, '') ===
      renderChat(newMessages)
    if (continues && !isNew)
      world.reportViolation(`the prompt of turn ${index} does not end with its new messages`)
  }
}

/** Renders the template of the embedded engine (ChatML), with tool results in the order of the sampled tool calls. */
function renderChat(messages: readonly ChatMessage[]): string {
  const results = messages.filter(({ role }) => role === 'tool').map((message) => getContent(message))
  const response = results
    .toSorted()
    .map((result) => `<tool_response>\n${result}\n</tool_response>\n`)
    .join('')
  const turns = messages
    .filter(({ role }) => role !== 'tool')
    .map((message) => `<|im_start|>${message.role}\n${getContent(message)}<|im_end|>\n`)
  const first = response && `<|im_start|>user\n${response}<|im_end|>\n`
  return removeSpaces(`${first}${turns.join('')}<|im_start|>assistant\n`)
}

/** Removes the template's instructions for tools. */
function getConversationText(prompt: string): string {
  return removeSpaces(prompt).replace(/#Tools.*?<\/tool_call>(?=<\|im_end\|>)/, '')
}

function removeSpaces(text: string): string {
  return text.replace(/\s+/g, '')
}
