/** The scheme of a URL, and everything before the last `@`, where credentials are. */
const CREDENTIALS = /^([a-z][a-z\d+.-]*:\/\/)?.*@/is

/** Returns a URL for logs and messages, without the user name and the password. */
export function toShownUrl(url: string): string {
  const parsed = URL.parse(url)
  if (parsed === null) return hideCredentials(url)
  if (parsed.username === '' && parsed.password === '') return url
  parsed.username = ''
  parsed.password = ''
  return parsed.href.replace(/\/$/, '')
}

/**
 * Replaces the credentials in text that should be a URL. A password with unencoded characters such as `/` is not where a
 * parser would find it, so this replaces everything before the last `@`.
 */
export function hideCredentials(text: string): string {
  return text.replace(CREDENTIALS, '$1***@')
}
