import { ProxyError } from '../../../../base/errors.ts'

/**
 * The URL of an engine from the two parts in which a trainer gives it. A URL that ends in `api_path` already, as
 * trainers write it too, does not get it twice.
 * @throws ProxyError `invalid_request`; `unsupported` for a path that does not end in `/v1`
 */
export function engineUrlOf({ url, api_path: apiPath }: { url: string; api_path: string }): string {
  const parsed = URL.parse(url)
  if (parsed === null || !/^https?:$/.test(parsed.protocol)) {
    // The text is not repeated: it may hold a password.
    throw new ProxyError('invalid_request', "'url' must look like http://host:8000", { param: 'url' })
  }
  const path = parsed.pathname.replace(/\/+$/, '')
  const suffix = withoutSlashes(apiPath) === '' ? '' : `/${withoutSlashes(apiPath)}`
  parsed.pathname = path.endsWith(suffix) ? path : path + suffix
  if (parsed.pathname.endsWith('/v1')) return parsed.href
  const message = `'api_path' must end in /v1: engines are called at …/v1/chat/completions`
  throw new ProxyError('unsupported', message, { param: 'api_path' })
}

function withoutSlashes(path: string): string {
  return path.replace(/^\/+/, '').replace(/\/+$/, '')
}
