/** Calls of the API. The key, where the proxy asks for one, is kept for as long as the browser's tab. */
import { signal } from '@preact/signals'

const KEY = 'llm-proxy-key'

/** The API's root: the page is served as `ui` below it. */
export const BASE = new URL('.', location.href).href.replace(/#.*$/, '')

/** Set while the proxy refuses what is shown for want of a key. */
export const refusal = signal<string | undefined>(undefined)

export class ApiError extends Error {
  readonly status: number
  constructor(status: number, message: string) {
    super(message)
    this.status = status
  }
}

export function setKey(key: string): void {
  sessionStorage.setItem(KEY, key)
  refusal.value = undefined
}

export function urlOf(path: string): string {
  return new URL(path.replace(/^\//, ''), BASE).href
}

export function sessionPath(sessionId: string, rest = ''): string {
  return `sessions/${encodeURIComponent(sessionId)}${rest}`
}

/** @throws ApiError */
export async function getJson<T>(path: string, stop?: AbortSignal): Promise<T> {
  return (await get(path, stop)).json() as Promise<T>
}

export async function getBytes(path: string, stop?: AbortSignal): Promise<ArrayBuffer> {
  return (await get(path, stop)).arrayBuffer()
}

/** Lines of an answer that goes on; ends when the connection does. */
export async function* getLines<T>(path: string, stop: AbortSignal): AsyncGenerator<T> {
  const { body } = await get(path, stop)
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
  const key = sessionStorage.getItem(KEY)
  const headers: Record<string, string> = key === null ? {} : { authorization: `Bearer ${key}` }
  const response = await fetch(urlOf(path), { headers, ...(stop && { signal: stop }) })
  if (response.ok) return response
  const { detail } = (await response.json().catch(() => ({}))) as { detail?: string }
  const message = detail ?? `${response.status} ${response.statusText}`
  if (response.status === 401 || response.status === 403) refusal.value = message
  throw new ApiError(response.status, message)
}

/** For a terminal; the key stays where it is. */
export function curlOf(path: string): string {
  const auth = sessionStorage.getItem(KEY) === null ? '' : ` -H "authorization: Bearer $LLM_PROXY_VIEW_KEY"`
  return `curl -sf${auth} '${urlOf(path)}'`
}
