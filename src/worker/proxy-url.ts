/**
 * Where a proxy takes workers.
 * @param proxyUrl `http(s)://` or `ws(s)://`, with or without a base path, with or without `/ws/worker`
 * @throws TypeError for what is no URL
 */
export function workerSocketUrl(proxyUrl: string): string {
  const url = new URL(proxyUrl)
  url.protocol = url.protocol.replace(/^http/, 'ws')
  if (!url.pathname.endsWith('/ws/worker')) url.pathname = `${url.pathname.replace(/\/$/, '')}/ws/worker`
  return url.href
}

/** Before the scheme of a URL whose host stands for several proxies: `dns+ws://llm-proxy-nodes:8080`. */
const SEVERAL = /^dns\+/i

/** Whether each address of the URL's host is a proxy of its own. */
export function standsForSeveral(proxyUrl: string): boolean {
  return SEVERAL.test(proxyUrl)
}

/** What each of them is dialled by. */
export function toAddressUrl(proxyUrl: string): string {
  return proxyUrl.replace(SEVERAL, '')
}

/** The URL as it may be shown: a key that stands before its `@` is left out. */
export function shownUrl(proxyUrl: string): string {
  return proxyUrl.replace(/\/\/[^/@]*@/, '//')
}
