import { ProxyError } from '../base/errors.ts'
import type { HealthConfig } from '../proxy/config/options/health.ts'
import { trustedAuthorities } from '../proxy/config/trusted-authorities.ts'
import { ask } from './ask.ts'
import { serverOfEnvironment } from './proxy-client.ts'

/** `llm-proxy health`: asks `/health` once and prints what it says. @returns the exit code */
export async function run({ url, tlsCa, timeoutMs }: HealthConfig): Promise<number> {
  const server = url === undefined ? serverOfEnvironment() : { url, trust: trustedAuthorities(tlsCa) }
  const health = `${server.url.replace(/\/+$/, '')}/health`
  const options = { ...server.trust, signal: AbortSignal.timeout(timeoutMs) }
  const { status, text } = await ask(health, options).catch((error: unknown) => {
    throw new ProxyError('start_failed', `no proxy answers at ${server.url}: ${reason(error, timeoutMs)}`)
  })
  process.stdout.write(`${text}\n`)
  return status >= 200 && status < 300 ? 0 : 1
}

function reason(error: unknown, timeoutMs: number): string {
  if (!(error instanceof Error)) return String(error)
  if (error.name === 'AbortError') return `nothing came within ${timeoutMs} ms`
  return error.message
}
