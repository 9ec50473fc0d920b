import { ProxyError } from '../../../base/errors.ts'

/** The address of an engine and the credentials for it. Only `name` may be displayed. */
export interface Endpoint {
  /** The URL without credentials and without `/v1`. */
  readonly name: string
  readonly origin: string
  /** The path before `/v1`: empty, or with a leading slash. */
  readonly basePath: string
  readonly authorization: string | undefined
  /** Removes the credentials from text, for engines that repeat them in responses. */
  redact(text: string): string
}

/**
 * Parses an engine's URL, with or without `/v1` at the end. `user:password@` or `apiKey` becomes an Authorization
 * header; the key takes precedence.
 * @throws ProxyError `config_invalid`
 */
export function parseEndpoint(url: string, apiKey?: string): Endpoint {
  const parsed = URL.parse(url)
  if (parsed === null || !/^https?:$/.test(parsed.protocol)) {
    // The URL is omitted from the message: it may contain a password.
    throw new ProxyError('config_invalid', 'an engine URL must look like http://host:8000/v1')
  }
  const { origin, pathname, username, password } = parsed
  const basePath = pathname.replace(/\/+$/, '').replace(/\/v1$/, '')
  const user = `${decode(username)}:${decode(password)}`
  const basic = user === ':' ? undefined : Buffer.from(user).toString('base64')
  const secrets = [apiKey, basic, password, decode(password)].filter((secret) => Boolean(secret)) as string[]
  return {
    name: `${origin}${basePath}`,
    origin,
    basePath,
    authorization: apiKey ? `Bearer ${apiKey}` : basic && `Basic ${basic}`,
    redact: (text) => secrets.reduce((clean, secret) => clean.replaceAll(secret, '***'), text),
  }
}

/** Decodes percent-encoding; returns malformed text unchanged. */
function decode(text: string): string {
  try {
    return decodeURIComponent(text)
  } catch {
    return text
  }
}
