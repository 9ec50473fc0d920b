/** Compares turns with what engines did for them, and prompts with what agents had read. */
import type { Model } from '../actors/engine.ts'
import { type ChatMessage, contentOf, promptIds, type Served } from '../actors/oracle.ts'
import type { World } from '../world/world.ts'
import {
  type Checked,
  callOf,
  isSame,
  pastAfter,
  type SessionHistory,
  type SessionOnRecord,
  type TurnOnRecord,
} from './on-record.ts'
import { checkParts } from './parts.ts'

export function checkTurns(
  world: World,
  expected: SessionHistory,
  { turns }: SessionOnRecord,
  checked: Checked,
): void {
  const { sessionId } = expected
  const tries = new Map<string, number>()
  for (const { call } of expected.attempts) tries.set(call, (tries.get(call) ?? 0) + 1)
  for (const [place, turn] of turns.entries()) {
    const call = callOf(turn)
    if (turn.index !== place) world.violated(`turn ${place} of ${sessionId} has the index ${turn.index}`)
    if (turn.status === 'open') world.violated(`the turn of ${call} is open, and nothing is under way`)
    const left = tries.get(call) ?? 0
    if (left === 0) world.violated(`${sessionId} has a turn more of ${call} than was asked for`)
    tries.set(call, left - 1)
    checkTokens(world, turn, call, checked)
  }
}

/** Checks that every turn is exact, in a run whose engines reported everything. */
export function checkExact(world: World, { sessionId }: SessionHistory, { turns }: SessionOnRecord): void {
  for (const { status, exact, index } of turns) {
    if (status === 'completed' && !exact) world.violated(`turn ${index} of ${sessionId} is not exact`)
  }
}

/** Renders a request as an engine that renders itself does. */
function renderedPrompt(
  { request_messages: messages, params }: TurnOnRecord,
  { vocabulary }: Model,
): number[] {
  return params.prompt === undefined ? promptIds(messages) : vocabulary.encode(params.prompt)
}

function checkTokens(
  world: World,
  turn: TurnOnRecord,
  call: string,
  { model, isTokenMode, engines }: Checked,
): void {
  const { prompt_token_ids: recorded, completion_token_ids: ids, completion_logprobs: logprobs } = turn
  const isWhole = turn.status === 'completed'
  if (isWhole ? !turn.exact : ids.length === 0) return
  const isRendered = !isTokenMode || turn.params.prompt !== undefined
  if (isRendered && isWhole && !isSame(recorded, renderedPrompt(turn, model)))
    world.violated(`the turn of ${call} has another prompt's ids`)
  const { max_tokens: limit } = turn.params
  if (limit !== undefined && ids.length > limit)
    world.violated(`the turn of ${call} has ${ids.length} tokens, and its limit is ${limit}`)
  const { engine_requests: parts } = turn.annotations
  if (parts !== undefined) {
    checkParts(world, { turn, call, engines }, parts)
    return
  }
  const requests = engines
    .flatMap(({ served }) => served)
    .filter((served) => served.call === call && (!isWhole || isSame(served.prompt, recorded)))
  const sampled = requests.filter(({ tokens, length }) => {
    if (isWhole && tokens.length < length) return false
    const kept = isWhole ? tokens : tokens.slice(0, ids.length)
    return (
      isSame(
        ids,
        kept.map(({ id }) => id),
      ) &&
      isSame(
        logprobs,
        kept.map(({ logprob }) => logprob),
      )
    )
  })
  const wrong = sampled.map((served) => wrongWeights(turn, served))
  // Several samples may be equal. An interrupted one may lack an id that its engine did not report; it is not trained.
  if (wrong.length > 0 && wrong.every(Boolean)) world.violated(`the turn of ${call} ${wrong[0]}`)
  if (wrong.length === 0 && isWhole)
    world.violated(`the turn of ${call} has other ids or logprobs than any engine sampled for it`)
}

/**
 * Checks weight versions. Reported ones must be recorded; others may be recorded or unknown, but never later than they
 * were.
 */
function wrongWeights(
  { status, weight_version_start: start, weight_version_end: end }: TurnOnRecord,
  { weights, versions, tells }: Served,
): string | undefined {
  const first = weights[0]!
  const last = weights.at(-1)
  const mayBegin = start === null || versions.indexOf(start) <= versions.indexOf(first)
  if (tells.start ? start !== first : !mayBegin)
    return `began with weights ${first}, and its record says ${start}`
  if (status === 'completed' && tells.end && end !== last)
    return `ended with weights ${last}, and its record says ${end}`
  return undefined
}

/**
 * Checks prompts that the proxy built. They continue the completion that the agent read, with its exact prompt ids and
 * sampled ids, whatever the agent changed in its echo, followed by the new messages. If the agent has cut something,
 * they do not.
 */
export function checkPrompts(
  world: World,
  { attempts }: SessionHistory,
  { turns }: SessionOnRecord,
  { decode }: Model,
): void {
  const attemptOf = new Map(attempts.map((attempt) => [attempt.turnId, attempt]))
  for (const turn of turns) {
    const { request_messages: messages, prompt_token_ids: prompt, index } = turn
    if (turn.status !== 'completed' || !turn.exact || messages.length === 0) continue
    // Clients trim their echoes; the tokens stay those that were sampled.
    if (!messages.some(({ tool_calls: calls }) => calls) && saidIn(decode(prompt)) !== chatText(messages))
      world.violated(`the prompt of turn ${index} does not say what its messages say`)
    const { goesOnFrom, isEdited } = attemptOf.get(turn.turn_id) ?? {}
    const before = turns.find(({ turn_id: id }) => id === goesOnFrom)
    if (before?.status !== 'completed' || !before.exact) continue
    const past = pastAfter(before)
    const goesOn = isSame(past, prompt.slice(0, past.length))
    if (goesOn === isEdited)
      world.violated(
        `the prompt of turn ${index} ${goesOn ? 'goes on from' : 'has not the tokens of'} turn ${before.index}, ` +
          `of which its agent has cut ${isEdited ? 'something' : 'nothing'}`,
      )
    const news = messages.slice(messages.findLastIndex(({ role }) => role === 'assistant') + 1)
    const isNew = saidIn(decode(prompt.slice(past.length))).replace(/^<\|im_end\|>/, '') === chatText(news)
    if (goesOn && !isNew) world.violated(`the prompt of turn ${index} does not say what is new in it`)
  }
}

/** Renders the embedded engine's template (ChatML). Tool results are in the order in which their calls were sampled. */
function chatText(messages: readonly ChatMessage[]): string {
  const results = messages.filter(({ role }) => role === 'tool').map((message) => contentOf(message))
  const response = results
    .toSorted()
    .map((result) => `<tool_response>\n${result}\n</tool_response>\n`)
    .join('')
  const turns = messages
    .filter(({ role }) => role !== 'tool')
    .map((message) => `<|im_start|>${message.role}\n${contentOf(message)}<|im_end|>\n`)
  const first = response && `<|im_start|>user\n${response}<|im_end|>\n`
  return squeezed(`${first}${turns.join('')}<|im_start|>assistant\n`)
}

/** Removes the template's instructions for tools. */
function saidIn(prompt: string): string {
  return squeezed(prompt).replace(/#Tools.*?<\/tool_call>(?=<\|im_end\|>)/, '')
}

function squeezed(text: string): string {
  return text.replace(/\s+/g, '')
}
