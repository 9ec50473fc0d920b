/**
 * Pages in a browser that reach for the proxy of whoever looks at them. A browser tells what page a request comes from
 * (`Origin`), and a page that had its own name point here sends that name (`Host`, "DNS rebinding"). No page can send a
 * key that it does not have, so this is for proxies without keys, and for the worker socket, which is for no page at all.
 */
import { isIP } from 'node:net'
import type { FastifyRequest } from 'fastify'
import { ProxyError } from '../../../base/errors.ts'

/** @returns why the request is refused. Proxies of other programs in between must leave `Host` as it was, or be trusted */
export function refusalOfForeignOrigin({ headers, host }: FastifyRequest): ProxyError | undefined {
  const { origin } = headers
  if (origin === undefined || hostOf(origin) === host.toLowerCase()) return undefined
  return new ProxyError('forbidden', 'This request comes from a web page of another origin')
}

/** @returns why the request is refused: `Host` is a name that somebody else may own */
export function refusalOfForeignHost({ hostname }: FastifyRequest): ProxyError | undefined {
  if (isIP(hostname.replace(/^\[|\]$/g, '')) || !isPublicName(hostname.toLowerCase())) return undefined
  const message = `'${hostname}' is not a name of this proxy, which listens on the loopback only: use its address, or give it keys`
  return new ProxyError('forbidden', message)
}

/** Names without a dot, and those under suffixes that nobody can register. */
function isPublicName(name: string): boolean {
  return name.includes('.') && !/\.(localhost|internal|local|test|home\.arpa)\.?$/.test(name)
}

/** `null`, which sandboxed pages send, is no host. */
function hostOf(origin: string): string | undefined {
  return URL.parse(origin)?.host
}
