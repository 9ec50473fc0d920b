/** One attempt of an agent's request, and its outcome. */
import { type Dispatcher, request } from 'undici'

export interface ChatMessage {
  role: string
  content: string
}

/**
 * `answered`: a complete response, as the dialect defines it. `refused`: an error with a code, as a status or in the
 * stream. `left`: the agent disconnected on purpose. `broken`: anything else.
 */
export type Ending =
  | { kind: 'answered'; turnId: string; text: string; tokenIds: readonly number[] }
  | { kind: 'refused'; code: string }
  | { kind: 'left' }
  | { kind: 'broken'; reason: string }

interface SoakRequest {
  url: string
  messages: readonly ChatMessage[]
  stream: boolean
  maxTokens: number
  /** The number of earlier attempts. */
  retry: number
  /** The time after which the agent disconnects; undefined: never. */
  disconnectAfterMs: number | undefined
}

/**
 * Longer than the proxy's own timeouts: a request waits up to 30 s for its worker each time the worker's link is cut,
 * and fails after 300 s without a frame.
 */
const TIMEOUT_MS = 330_000

export async function sendAttempt(attempt: SoakRequest, dispatcher: Dispatcher): Promise<Ending> {
  const timeout = AbortSignal.timeout(TIMEOUT_MS)
  const disconnect =
    attempt.disconnectAfterMs === undefined ? undefined : AbortSignal.timeout(attempt.disconnectAfterMs)
  try {
    const response = await request(attempt.url, {
      method: 'POST',
      headers: {
        'content-type': 'application/json',
        ...(attempt.retry > 0 && { 'x-stainless-retry-count': String(attempt.retry) }),
      },
      body: createBody(attempt),
      signal: disconnect ? AbortSignal.any([timeout, disconnect]) : timeout,
      headersTimeout: 0,
      bodyTimeout: 0,
      dispatcher,
    })
    const text = await response.body.text()
    if (response.statusCode !== 200) return parseError(text)
    return attempt.stream ? parseStream(text) : parseResponse(text)
  } catch (error) {
    if (disconnect?.aborted) return { kind: 'left' }
    return { kind: 'broken', reason: timeout.aborted ? `no end within ${TIMEOUT_MS} ms` : String(error) }
  }
}

function createBody({ messages, stream, maxTokens }: SoakRequest): string {
  return JSON.stringify({ model: 'soak', messages, stream, max_tokens: maxTokens, return_token_ids: true })
}

function parseError(text: string): Ending {
  try {
    const { code, message } = JSON.parse(text).error
    if (typeof code === 'string' && typeof message === 'string') return { kind: 'refused', code }
  } catch {
    // Reported below.
  }
  return { kind: 'broken', reason: `an error without a code or message: ${text.slice(0, 200)}` }
}

function parseResponse(text: string): Ending {
  const { id, choices } = JSON.parse(text)
  const [{ message, finish_reason: reason, token_ids: tokenIds }] = choices
  if (!isFinished(reason)) return { kind: 'broken', reason: `unfinished: ${text.slice(0, 200)}` }
  return { kind: 'answered', turnId: getTurnId(id), text: message.content, tokenIds }
}

function parseStream(text: string): Ending {
  // Comments keep a connection alive while a worker is disconnected; they are not events.
  const events = text.split('\n\n').filter((event) => event.startsWith('data: '))
  const isDone = events.at(-1) === 'data: [DONE]'
  const chunks = events.filter((event) => event !== 'data: [DONE]').map((event) => JSON.parse(event.slice(6)))
  const failed = chunks.find((chunk) => chunk.error)
  if (failed) return parseError(JSON.stringify(failed))
  if (!isDone || !chunks.some((chunk) => isFinished(chunk.choices[0]?.finish_reason))) {
    return { kind: 'broken', reason: `a stream without an end: ${text.slice(-200)}` }
  }
  return {
    kind: 'answered',
    turnId: getTurnId(chunks[0].id),
    text: chunks.map((chunk) => chunk.choices[0]?.delta.content ?? '').join(''),
    tokenIds: chunks.flatMap((chunk) => chunk.choices[0]?.token_ids ?? []),
  }
}

function isFinished(reason: unknown): boolean {
  return reason === 'stop' || reason === 'length'
}

function getTurnId(id: string): string {
  return id.replace('chatcmpl-', '')
}
