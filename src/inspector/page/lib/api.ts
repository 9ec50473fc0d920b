/** Sends requests to the API. The API key, if the proxy requires one, is stored until the browser tab closes. */
import { signal } from '@preact/signals'

/** The name of the API key in the session storage. */
const KEY = 'llm-proxy-key'

/** The root of the API, below which the page is served as `ui`. */
const BASE = new URL('.', location.href)

/** Responses of the API by path: JSON values, or binary responses as base64. */
interface EmbeddedResponses {
  json: Record<string, unknown>
  base64: Record<string, string>
}

/** The responses that `sessions export --format html` embedded in this file; undefined if the page is served. */
const recorded = readRecorded()

/** Whether the page is a file with embedded responses. */
export const IS_FILE = recorded !== undefined

function readRecorded(): EmbeddedResponses | undefined {
  const text = document.getElementById('recorded')?.textContent
  return text ? (JSON.parse(text) as EmbeddedResponses) : undefined
}

/** The message with which the API rejects requests without a sufficient API key; undefined: it accepts them. */
export const keyError = signal<string | undefined>(undefined)

/** Whether labels and notes cannot be changed, because the page shows a database without a proxy, or a file. */
export const isReadOnly = signal(IS_FILE)

/** Whether the proxy cannot be reached. */
export const isUnreachable = signal(false)

/**
 * The number of times that the proxy became reachable again. Data that was loaded before the latest time may be stale.
 */
export const reconnections = signal(0)

const POLL_MS = 1_000

/** Polls the health route until the proxy responds. */
async function retryUntilReachable(): Promise<void> {
  if (isUnreachable.value) return
  isUnreachable.value = true
  const isBack = () =>
    fetch(toUrl('health')).then(
      ({ status }) => status < 502,
      () => false,
    )
  do await new Promise((resolve) => setTimeout(resolve, POLL_MS))
  while (!(await isBack()))
  isUnreachable.value = false
  reconnections.value += 1
}

/** An error response of the API. */
class ApiError extends Error {
  readonly status: number
  constructor(status: number, message: string) {
    super(message)
    this.status = status
  }
}

export function setKey(key: string): void {
  sessionStorage.setItem(KEY, key)
  keyError.value = undefined
}

function toUrl(path: string): string {
  return new URL(path, BASE).href
}

export function formatSessionPath(sessionId: string, rest = ''): string {
  return `sessions/${encodeURIComponent(sessionId)}${rest}`
}

/** Reads a JSON response. @param path below the root of the API @throws ApiError */
export async function getJson<T>(path: string, stop?: AbortSignal): Promise<T> {
  return (await get(path, stop)).json() as Promise<T>
}

/**
 * Sends a PATCH request.
 * @throws ApiError, also if the key lacks permission
 */
export async function patchJson(path: string, body: object): Promise<void> {
  const headers = { 'content-type': 'application/json', ...getKeyHeader() }
  const response = await fetch(toUrl(path), { method: 'PATCH', headers, body: JSON.stringify(body) })
  if (!response.ok) throw await toApiError(response)
}

export async function getBytes(path: string, stop?: AbortSignal): Promise<ArrayBuffer> {
  return (await get(path, stop)).arrayBuffer()
}

/** Yields the lines of a streamed response until the connection ends. */
export async function* getLines<T>(path: string, stop: AbortSignal): AsyncGenerator<T> {
  const response = await get(path, stop)
  // The viewer of a database has no events.
  if (response.status === 204) throw new ApiError(204, 'This server sends no events')
  const { body } = response
  const decoder = new TextDecoder()
  const reader = body!.getReader()
  let rest = ''
  for (;;) {
    const { done, value } = await reader.read()
    if (done) return
    const lines = (rest + decoder.decode(value, { stream: true })).split('\n')
    rest = lines.pop()!
    for (const line of lines) if (line !== '') yield JSON.parse(line) as T
  }
}

async function get(path: string, stop?: AbortSignal): Promise<Response> {
  if (recorded !== undefined) return toResponse(recorded, path)
  const sent = { headers: getKeyHeader(), ...(stop && { signal: stop }) }
  const response = await fetch(toUrl(path), sent).catch((error) => {
    if (!stop?.aborted) void retryUntilReachable()
    throw error
  })
  if (response.ok) return response
  const error = await toApiError(response)
  // A view key cannot list rollouts, which require an admin key.
  if (error.status === 401 || (error.status === 403 && path !== 'rollouts')) keyError.value = error.message
  throw error
}

function getKeyHeader(): Record<string, string> {
  const key = sessionStorage.getItem(KEY)
  return key === null ? {} : { authorization: `Bearer ${key}` }
}

async function toApiError(response: Response): Promise<ApiError> {
  const { detail } = (await response.json().catch(() => ({}))) as { detail?: string }
  return new ApiError(response.status, detail ?? `${response.status} ${response.statusText}`)
}

/** Returns an embedded response. All queries of the session list have the same response, its only page. */
function toResponse({ json, base64 }: EmbeddedResponses, path: string): Response {
  const name = path.startsWith('sessions?') ? 'sessions' : path
  const value = json[name]
  if (value !== undefined) return Response.json(value)
  const text = base64[name]
  if (text === undefined) throw new ApiError(404, 'This file does not contain the response')
  return new Response(Uint8Array.from(atob(text), (character) => character.charCodeAt(0)))
}

/** Returns a curl command for a path; it reads the API key from the environment. */
export function formatCurl(path: string): string {
  const auth = sessionStorage.getItem(KEY) === null ? '' : ` -H "authorization: Bearer $LLM_PROXY_VIEW_KEY"`
  return `curl -sf${auth} '${toUrl(path)}'`
}
