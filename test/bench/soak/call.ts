/** One attempt of an agent's request, and its outcome. */
import { type Dispatcher, request } from 'undici'

export interface ChatMessage {
  role: string
  content: string
}

/**
 * `answered`: complete, as the dialect defines it. `refused`: a specific error, as a status or in the stream. `left`:
 * the agent closed its connection on purpose. `broken`: anything else.
 */
export type Ending =
  | { kind: 'answered'; turnId: string; text: string; tokenIds: readonly number[] }
  | { kind: 'refused'; code: string }
  | { kind: 'left' }
  | { kind: 'broken'; how: string }

export interface SoakCall {
  url: string
  messages: readonly ChatMessage[]
  stream: boolean
  maxTokens: number
  /** The number of earlier attempts. */
  retry: number
  /** Disconnect after this time; undefined: stay connected. */
  leaveAfterMs: number | undefined
}

/**
 * Longer than the proxy's own timeouts: a request waits up to 30 s for its worker each time the worker's link is cut,
 * and fails after 300 s without a frame.
 */
const HUNG_MS = 330_000

export async function makeCall(call: SoakCall, dispatcher: Dispatcher): Promise<Ending> {
  const hung = AbortSignal.timeout(HUNG_MS)
  const leave = call.leaveAfterMs === undefined ? undefined : AbortSignal.timeout(call.leaveAfterMs)
  try {
    const response = await request(call.url, {
      method: 'POST',
      headers: {
        'content-type': 'application/json',
        ...(call.retry > 0 && { 'x-stainless-retry-count': String(call.retry) }),
      },
      body: createBody(call),
      signal: leave ? AbortSignal.any([hung, leave]) : hung,
      headersTimeout: 0,
      bodyTimeout: 0,
      dispatcher,
    })
    const text = await response.body.text()
    if (response.statusCode !== 200) return getRejection(text)
    return call.stream ? streamed(text) : getEnding(text)
  } catch (error) {
    if (leave?.aborted) return { kind: 'left' }
    return { kind: 'broken', how: hung.aborted ? `no end within ${HUNG_MS} ms` : String(error) }
  }
}

function createBody({ messages, stream, maxTokens }: SoakCall): string {
  return JSON.stringify({ model: 'soak', messages, stream, max_tokens: maxTokens, return_token_ids: true })
}

function getRejection(text: string): Ending {
  try {
    const { code, message } = JSON.parse(text).error
    if (typeof code === 'string' && typeof message === 'string') return { kind: 'refused', code }
  } catch {
    // Reported below.
  }
  return { kind: 'broken', how: `an error that says nothing: ${text.slice(0, 200)}` }
}

function getEnding(text: string): Ending {
  const { id, choices } = JSON.parse(text)
  const [{ message, finish_reason: reason, token_ids: tokenIds }] = choices
  if (!isEnd(reason)) return { kind: 'broken', how: `unfinished: ${text.slice(0, 200)}` }
  return { kind: 'answered', turnId: getTurnId(id), text: message.content, tokenIds }
}

function streamed(text: string): Ending {
  // Comments keep a connection alive while a worker is disconnected; they are not events.
  const events = text.split('\n\n').filter((event) => event.startsWith('data: '))
  const isDone = events.at(-1) === 'data: [DONE]'
  const chunks = events.filter((event) => event !== 'data: [DONE]').map((event) => JSON.parse(event.slice(6)))
  const failed = chunks.find((chunk) => chunk.error)
  if (failed) return getRejection(JSON.stringify(failed))
  if (!isDone || !chunks.some((chunk) => isEnd(chunk.choices[0]?.finish_reason))) {
    return { kind: 'broken', how: `a stream that just ended: ${text.slice(-200)}` }
  }
  return {
    kind: 'answered',
    turnId: getTurnId(chunks[0].id),
    text: chunks.map((chunk) => chunk.choices[0]?.delta.content ?? '').join(''),
    tokenIds: chunks.flatMap((chunk) => chunk.choices[0]?.token_ids ?? []),
  }
}

function isEnd(reason: unknown): boolean {
  return reason === 'stop' || reason === 'length'
}

function getTurnId(id: string): string {
  return id.replace('chatcmpl-', '')
}
