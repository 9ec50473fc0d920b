import { ProxyError } from '../../../base/errors.ts'

/** Where an engine is and how it knows us. Only `name` may be shown. */
export interface Endpoint {
  /** The URL without credentials and without `/v1`. */
  readonly name: string
  readonly origin: string
  /** Path that precedes `/v1`, empty or with a leading slash. */
  readonly basePath: string
  readonly authorization: string | undefined
  /** Text without the credentials, for an engine that repeats them in what it says. */
  redact(text: string): string
}

/**
 * Reads an engine's URL, with or without `/v1` at its end. `user:password@` or `apiKey` becomes an Authorization
 * header; the key wins.
 * @throws ProxyError `config_invalid`
 */
export function parseEndpoint(url: string, apiKey?: string): Endpoint {
  const parsed = URL.parse(url)
  if (parsed === null || !/^https?:$/.test(parsed.protocol)) {
    // The text is not repeated: it may hold a password.
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

/** Percent-encoding that is none is taken literally. */
function decode(text: string): string {
  try {
    return decodeURIComponent(text)
  } catch {
    return text
  }
}
