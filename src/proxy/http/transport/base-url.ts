interface ServerAddress {
  host: string
  port: number
  /** Speaks TLS. Default: it does not. */
  secure?: boolean
  /** Precedes every path: `/llm`. Default: nothing does. */
  basePath?: string
}

/** The base URL of a server that listens there; an IPv6 address goes into brackets. */
export function baseUrl({ host, port, secure = false, basePath = '' }: ServerAddress): string {
  return `${secure ? 'https' : 'http'}://${host.includes(':') ? `[${host}]` : host}:${port}${basePath}`
}
