/**
 * Returns the WebSocket URL at which a proxy accepts workers.
 * @param proxyUrl `http(s)://` or `ws(s)://`, with or without a base path, with or without `/ws/worker`
 * @throws TypeError for an invalid URL
 */
export function getWorkerSocketUrl(proxyUrl: string): string {
  const url = new URL(proxyUrl)
  url.protocol = url.protocol.replace(/^http/, 'ws')
  if (!url.pathname.endsWith('/ws/worker')) url.pathname = `${url.pathname.replace(/\/$/, '')}/ws/worker`
  return url.href
}

/** The prefix of a URL whose host resolves to several proxies: `dns+ws://llm-proxy-nodes:8080`. */
const SEVERAL = /^dns\+/i

/** Returns whether each address of the URL's host is a separate proxy, according to the prefix `dns+`. */
export function isMultiProxyUrl(proxyUrl: string): boolean {
  return SEVERAL.test(proxyUrl)
}

/** Returns the URL without the prefix `dns+`, which is dialed at each address. */
export function toAddressUrl(proxyUrl: string): string {
  return proxyUrl.replace(SEVERAL, '')
}
