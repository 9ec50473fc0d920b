import { networkInterfaces } from 'node:os'

interface ServerAddress {
  host: string
  port: number
  /** Whether the server uses TLS. Default: false. */
  secure?: boolean
  /** The path that precedes every route: `/llm`. Default: none. */
  basePath?: string
}

/** Returns the base URL of a server; an IPv6 address is put into brackets. */
export function formatBaseUrl({ host, port, secure = false, basePath = '' }: ServerAddress): string {
  return `${secure ? 'https' : 'http'}://${host.includes(':') ? `[${host}]` : host}:${port}${basePath}`
}

/** Returns the URL at which other machines reach the proxy: if it listens on all addresses, the first external one. */
export function getReachableUrl(url: string): string {
  const reachable = new URL(url)
  if (reachable.hostname === '0.0.0.0' || reachable.hostname === '[::]') {
    const addresses = Object.values(networkInterfaces()).flatMap((all = []) => all)
    const { address } = addresses.find(({ internal, family }) => !internal && family === 'IPv4') ?? {}
    reachable.hostname = address ?? '127.0.0.1'
  }
  return reachable.href
}
