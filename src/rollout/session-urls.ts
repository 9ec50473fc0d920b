import { ProxyError } from '../base/errors.ts'

/** `http://proxy:8080` from what the user gave: a worker's `ws://` URL names the same proxy. No slash at the end. */
export function proxyBaseUrl(url: string): string {
  return url.replace(/^ws(s?):/, 'http$1:').replace(/\/+$/, '')
}

/**
 * The proxy's base URL as agents see it.
 * @param agentHost address or name, with a port if it is another one than the proxy's own (IPv6 then in brackets)
 * @throws ProxyError `config_invalid`
 */
export function agentFacingUrl(proxyUrl: string, agentHost?: string): string {
  const url = new URL(proxyUrl)
  // Whoever may reach the proxy through these is the trainer, not its agents.
  url.username = ''
  url.password = ''
  if (agentHost !== undefined) url.host = parseHost(agentHost)
  return proxyBaseUrl(url.href)
}

function parseHost(agentHost: string): string {
  const isBareIpv6 = agentHost.split(':').length > 2 && !agentHost.startsWith('[')
  const host = isBareIpv6 ? `[${agentHost}]` : agentHost
  if (URL.canParse(`http://${host}`) && !/[/?#@\s]/.test(host)) return host
  throw new ProxyError(
    'config_invalid',
    `LLM_PROXY_IP: invalid value "${agentHost}": expected an address, such as 10.0.0.1`,
  )
}

/** A session's id as one segment of a URL, and as the key that it is on a proxy without keys. */
export function sessionSegment(sessionId: string): string {
  return encodeURIComponent(sessionId).replaceAll('%3A', ':')
}
