/** An agent: a conversation in a session, with timeouts and retries as in practice. */
import { sleep, type World } from '../world/world.ts'
import { type ClientResponse, sendRequest } from './client.ts'
import { createRequest, type Dialect, parseErrorCode, readResponse } from './dialects.ts'
import { getEcho, prune } from './echo.ts'
import type { Attempt, History } from './history.ts'
import { type ChatMessage, findRequestKey, getContent, getMaxTokens } from './oracle.ts'

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

const MAX_ATTEMPTS = 4
/** Longer than any response in the simulation takes. */
const REQUEST_TIMEOUT_MS = 100_000

export async function runAgent(world: World, history: History, plan: AgentPlan): Promise<void> {
  const { sessionId, name, turns, startMs, random } = plan
  const conversation: Conversation = {
    messages: [{ role: 'system', content: `you are ${name}` }],
    isEdited: false,
  }
  await sleep(startMs)
  for (let turn = 0; turn < turns; turn += 1) {
    const { messages } = conversation
    const hint = (what: string): ChatMessage => ({ role: 'user', content: `turn ${turn} is ${what}` })
    const question: ChatMessage = { role: 'user', content: `${sessionId}/${name}/${turn} go on` }
    if (random() < 0.3) {
      // The same question with another hint is a separate request.
      if (random() < 0.3)
        await sendAttempt(world, history, plan, {
          ...conversation,
          messages: [...messages, hint('easy'), question],
        })
      messages.push(hint('hard'))
    }
    messages.push(question)
    const completed = await sendWithRetries(world, history, plan, conversation)
    if (completed === undefined) return
    const snapshot = { ...conversation, messages: [...messages] }
    messages.push(...getEcho(completed, random))
    conversation.continuedTurnId = completed.turnId
    conversation.isEdited = false
    if (random() < 0.06) await sendAttempt(world, history, plan, snapshot)
    if (random() < 0.1) conversation.isEdited = prune(messages)
    await sleep(3_000 * random() ** 2)
  }
}

interface Conversation {
  messages: ChatMessage[]
  continuedTurnId?: string | undefined
  isEdited: boolean
}

/**
 * Sends a request with retries.
 * @returns the attempt with a complete response, undefined if there is none
 */
async function sendWithRetries(
  world: World,
  history: History,
  plan: AgentPlan,
  conversation: Conversation,
): Promise<Attempt | undefined> {
  const { random } = plan
  // An SDK retries with an identical body.
  const stream = random() < 0.7
  for (let retry = 0; retry < MAX_ATTEMPTS; retry += 1) {
    const attempt = await sendAttempt(world, history, plan, conversation, { retry, stream })
    const { outcome, status } = attempt
    if (outcome === 'read') return attempt
    if (outcome === 'rejected' && status! >= 400 && status! < 500 && status !== 429) return undefined
    if (outcome === 'disconnected' && random() < 0.3) return undefined
    await sleep((500 + 1_500 * random()) * (retry + 1))
  }
  return undefined
}

async function sendAttempt(
  world: World,
  history: History,
  { sessionId, name, dialect, tools, random }: AgentPlan,
  { messages, continuedTurnId, isEdited }: Conversation,
  { retry = 0, stream = random() < 0.7 } = {},
): Promise<Attempt> {
  const attempt: Attempt = {
    sessionId,
    requestKey: findRequestKey(getContent(messages.at(-1)!)),
    continuedTurnId,
    isEdited,
    dialect,
    retry,
    sentAtMs: world.time.nowMs,
  }
  history.attempts.push(attempt)
  const disconnects = random() < 0.07
  const how = `${retry > 0 ? `, attempt ${retry + 1}` : ''}${stream ? ', streamed' : ''}`
  world.log(name, `sends ${attempt.requestKey}, ${dialect}${how}`)
  const { path, body } = createRequest(dialect, {
    messages,
    stream,
    tools,
    maxTokens: tools ? undefined : getMaxTokens(attempt.requestKey),
  })
  const response = await sendRequest(world, {
    method: 'POST',
    path: `/${sessionId}${path}`,
    body,
    headers: retry > 0 ? { 'x-stainless-retry-count': String(retry) } : {},
    timeoutMs: disconnects && random() < 0.5 ? 40 + 400 * random() : REQUEST_TIMEOUT_MS,
    ...(disconnects && stream && { disconnectAfterBytes: 1 + Math.floor(2_000 * random()) }),
  })
  Object.assign(attempt, getOutcome(response, dialect, stream), {
    endedAtMs: world.time.nowMs,
    status: response.status,
  })
  world.log(
    name,
    `${attempt.requestKey}: ${attempt.outcome} ${response.status} ${attempt.code ?? response.error ?? ''}`,
  )
  return attempt
}

function getOutcome(response: ClientResponse, dialect: Dialect, stream: boolean): Partial<Attempt> {
  const { status, text, headers, isComplete } = response
  const turnId = headers['x-request-id']?.toString()
  if (response.error === 'disconnected' || response.error === 'timed out')
    return { outcome: 'disconnected', turnId }
  if (status === 0) return { outcome: 'broken' }
  if (status !== 200)
    return { outcome: isComplete ? 'rejected' : 'broken', turnId, code: parseErrorCode(text) }
  const parsed = readResponse(dialect, text, stream, isComplete)
  return 'text' in parsed ? { outcome: 'read', turnId, ...parsed } : { outcome: 'broken', turnId, ...parsed }
}
