import { request as requestHttp } from 'node:http'
import { type RequestOptions, request as requestHttps } from 'node:https'
import { text } from 'node:stream/consumers'
import { ProxyError } from '../base/errors.ts'
import { toShownUrl } from '../base/shown-url.ts'
import { escapeInvisible } from '../protocol/transcript/visible.ts'
import type { HealthConfig } from '../proxy/config/options/health.ts'
import { getServer } from './proxy-client.ts'

/** Runs `llm-proxy health`: requests `/health` once and prints the response. @returns the exit code */
export async function run({ timeoutMs, ...address }: HealthConfig): Promise<number> {
  const { url, trust } = getServer(address)
  const health = `${url.replace(/\/+$/, '')}/health`
  const options = { ...trust, signal: AbortSignal.timeout(timeoutMs) }
  const { status, text } = await sendRequest(health, options).catch((error: unknown) => {
    throw new ProxyError(
      'start_failed',
      `no proxy answers at ${toShownUrl(url)}: ${describeReason(error, timeoutMs)}`,
    )
  })
  process.stdout.write(`${escapeInvisible(text)}\n`)
  return status >= 200 && status < 300 ? 0 : 1
}

function describeReason(error: unknown, timeoutMs: number): string {
  if (!(error instanceof Error)) return String(error)
  if (error.name === 'AbortError') return `no response within ${timeoutMs} ms`
  return error.message
}

/**
 * Sends a GET request to a proxy. `fetch` has no option for certificate authorities.
 * @throws the error of the connection
 */
export function sendRequest(
  url: string | URL,
  options: RequestOptions = {},
): Promise<{ status: number; text: string }> {
  const request = new URL(url).protocol === 'https:' ? requestHttps : requestHttp
  return new Promise((resolve, reject) => {
    request(url, options, (response) => {
      text(response).then((body) => resolve({ status: response.statusCode ?? 0, text: body }), reject)
    })
      .on('error', reject)
      .end()
  })
}
