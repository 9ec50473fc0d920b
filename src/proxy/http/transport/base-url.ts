interface ServerAddress {
  host: string
  port: number
  /** Whether the server uses TLS. Default: false. */
  secure?: boolean
  /** The path that precedes every route: `/llm`. Default: none. */
  basePath?: string
}

/** Returns the base URL of a server; an IPv6 address is put into brackets. */
export function baseUrl({ host, port, secure = false, basePath = '' }: ServerAddress): string {
  return `${secure ? 'https' : 'http'}://${host.includes(':') ? `[${host}]` : host}:${port}${basePath}`
}
