/** An agent: a conversation in a session, with timeouts and retries as in practice. */
import { pause, type World } from '../world/world.ts'
import { type Answered, ask } from './client.ts'
import { createRequest, type Dialect, getCode, readResponse } from './dialects.ts'
import { getEcho, prune } from './echo.ts'
import type { Attempt, History } from './history.ts'
import { type ChatMessage, callIn, contentOf, maxTokensOf } from './oracle.ts'

export interface AgentPlan {
  sessionId: string
  /** Distinguishes the agents of a session. */
  name: string
  dialect: Dialect
  turns: number
  tools: boolean
  startMs: number
  random: () => number
}

const MAX_TRIES = 4
/** Longer than anything in the simulation takes. */
const CALL_TIMEOUT_MS = 100_000

export async function runAgent(world: World, history: History, plan: AgentPlan): Promise<void> {
  const { sessionId, name, turns, startMs, random } = plan
  const talk: Talk = { messages: [{ role: 'system', content: `you are ${name}` }], isEdited: false }
  await pause(startMs)
  for (let turn = 0; turn < turns; turn += 1) {
    const { messages } = talk
    const hint = (what: string): ChatMessage => ({ role: 'user', content: `turn ${turn} is ${what}` })
    const asks: ChatMessage = { role: 'user', content: `${sessionId}/${name}/${turn} go on` }
    if (random() < 0.3) {
      // The same question with another hint is another request.
      if (random() < 0.3)
        await attempt(world, history, plan, { ...talk, messages: [...messages, hint('easy'), asks] })
      messages.push(hint('hard'))
    }
    messages.push(asks)
    const read = await call(world, history, plan, talk)
    if (read === undefined) return
    const conversation = { ...talk, messages: [...messages] }
    messages.push(...getEcho(read, random))
    talk.goesOnFrom = read.turnId
    talk.isEdited = false
    if (random() < 0.06) await attempt(world, history, plan, conversation)
    if (random() < 0.1) talk.isEdited = prune(messages)
    await pause(3_000 * random() ** 2)
  }
}

/** A conversation so far. */
interface Talk {
  messages: ChatMessage[]
  goesOnFrom?: string | undefined
  isEdited: boolean
}

/**
 * Sends a request with retries.
 * @returns the attempt with a complete response, undefined if there is none
 */
async function call(
  world: World,
  history: History,
  plan: AgentPlan,
  talk: Talk,
): Promise<Attempt | undefined> {
  const { random } = plan
  // An SDK retries with an identical body.
  const stream = random() < 0.7
  for (let tries = 0; tries < MAX_TRIES; tries += 1) {
    const made = await attempt(world, history, plan, talk, { retry: tries, stream })
    const { outcome, status } = made
    if (outcome === 'read') return made
    if (outcome === 'refused' && status! >= 400 && status! < 500 && status !== 429) return undefined
    if (outcome === 'left' && random() < 0.3) return undefined
    await pause((500 + 1_500 * random()) * (tries + 1))
  }
  return undefined
}

async function attempt(
  world: World,
  history: History,
  { sessionId, name, dialect, tools, random }: AgentPlan,
  { messages, goesOnFrom, isEdited }: Talk,
  { retry = 0, stream = random() < 0.7 } = {},
): Promise<Attempt> {
  const made: Attempt = {
    sessionId,
    call: callIn(contentOf(messages.at(-1)!)),
    goesOnFrom,
    isEdited,
    dialect,
    retry,
    sentAtMs: world.time.nowMs,
  }
  history.attempts.push(made)
  const leaves = random() < 0.07
  const how = `${retry > 0 ? `, try ${retry + 1}` : ''}${stream ? ', streamed' : ''}`
  world.log(name, `asks ${made.call}, ${dialect}${how}`)
  const { path, body } = createRequest(dialect, {
    messages,
    stream,
    tools,
    maxTokens: tools ? undefined : maxTokensOf(made.call),
  })
  const response = await ask(world, {
    method: 'POST',
    path: `/${sessionId}${path}`,
    body,
    headers: retry > 0 ? { 'x-stainless-retry-count': String(retry) } : {},
    timeoutMs: leaves && random() < 0.5 ? 40 + 400 * random() : CALL_TIMEOUT_MS,
    ...(leaves && stream && { leaveAfterBytes: 1 + Math.floor(2_000 * random()) }),
  })
  Object.assign(made, getOutcome(response, dialect, stream), {
    endedAtMs: world.time.nowMs,
    status: response.status,
  })
  world.log(name, `${made.call}: ${made.outcome} ${response.status} ${made.code ?? response.error ?? ''}`)
  return made
}

function getOutcome(response: Answered, dialect: Dialect, stream: boolean): Partial<Attempt> {
  const { status, text, headers, isWhole: isComplete } = response
  const turnId = headers['x-request-id']?.toString()
  if (response.error === 'left' || response.error === 'time is up') return { outcome: 'left', turnId }
  if (status === 0) return { outcome: 'broken' }
  if (status !== 200) return { outcome: isComplete ? 'refused' : 'broken', turnId, code: getCode(text) }
  const read = readResponse(dialect, text, stream, isComplete)
  return 'text' in read ? { outcome: 'read', turnId, ...read } : { outcome: 'broken', turnId, ...read }
}
