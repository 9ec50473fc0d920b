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

/**
 * Returns the URL at which other machines reach the proxy: if it listens on all addresses, the first external one. IPv4
 * precedes IPv6, which needs a server that listens on `[::]`.
 * @param interfaces those of this machine
 */
export function getReachableUrl(url: string, interfaces = networkInterfaces()): string {
  const reachable = new URL(url)
  const { hostname } = reachable
  if (hostname !== '0.0.0.0' && hostname !== '[::]') return reachable.href
  const external = Object.values(interfaces).flatMap((all = []) => all.filter(({ internal }) => !internal))
  const ipv4 = external.find(({ family }) => family === 'IPv4')
  // A link-local address is valid only together with an interface of the machine that uses it.
  const ipv6 = external.find(({ family, address }) => family === 'IPv6' && !/^fe[89ab]/i.test(address))
  if (ipv4) reachable.hostname = ipv4.address
  else if (ipv6 && hostname === '[::]') reachable.hostname = `[${ipv6.address}]`
  else reachable.hostname = '127.0.0.1'
  return reachable.href
}
