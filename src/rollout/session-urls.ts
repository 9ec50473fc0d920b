import { ProxyError } from '../base/errors.ts'

/** Converts a URL of the proxy, such as a worker's `ws://` URL, to an HTTP base URL without a trailing slash. */
export function toProxyBaseUrl(url: string): string {
  return url.replace(/^ws(s?):/, 'http$1:').replace(/\/+$/, '')
}

/**
 * Returns the proxy's base URL for agents.
 * @param agentHost address or name, with a port if it differs from the proxy's (an IPv6 address then in brackets)
 * @throws ProxyError `config_invalid`
 */
export function getAgentFacingUrl(proxyUrl: string, agentHost?: string): string {
  const url = new URL(proxyUrl)
  // Credentials in the URL are the trainer's and must not reach agents.
  url.username = ''
  url.password = ''
  if (agentHost !== undefined) url.host = parseHost(agentHost)
  return toProxyBaseUrl(url.href)
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

/** Returns a session's id as one segment of a URL. On a proxy without keys it is also the agent's key. */
export function toSessionSegment(sessionId: string): string {
  return encodeURIComponent(sessionId).replaceAll('%3A', ':')
}
