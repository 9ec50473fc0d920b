/**
 * Rewrites paths whose session id contains unencoded slashes, such as `harbor/hello-world:0`. The router expects an id
 * in one segment, so the slashes of the id become `%2F` before routing, and all later steps, including the access
 * check, read the same id.
 *
 * The routes determine where an id ends. If the path ends in the segments that follow the id in a route, such as
 * `complete`, these are not part of the id; the route with the most such segments has precedence. The slash of the id
 * `a/complete` must therefore be sent as `%2F`.
 */
import { RESERVED_SEGMENTS } from '../../session/state/session-id.ts'

/** Route parameters that contain a session id; a trace id begins with one. */
const ID_PARAMS: ReadonlySet<string> = new Set([':sessionId', ':traceId'])

/** The segments of a route around its session id. */
interface PathTemplate {
  /** The segments before the id. */
  readonly before: readonly string[]
  /** The segments after the id: `:name` matches any segment, `*` at the end any number of segments. */
  readonly after: readonly string[]
}

/** Returns a function that rewrites the URL of a request into the form that the router expects. */
export function createSessionPaths(routes: readonly { method: string; path: string }[]) {
  const templates = new Map<string, PathTemplate[]>()
  for (const { method, path } of routes) {
    const segments = splitPath(path)
    const index = segments.findIndex((segment) => ID_PARAMS.has(segment))
    if (index === -1) continue
    const template = { before: segments.slice(0, index), after: segments.slice(index + 1) }
    templates.set(method, [...(templates.get(method) ?? []), template])
  }
  for (const list of templates.values()) list.sort((a, b) => b.after.length - a.after.length)

  return (method: string, url: string): string => {
    const ascii = removeRepeatedVersion(encodeNonAscii(url))
    const query = ascii.indexOf('?')
    const path = query === -1 ? ascii : ascii.slice(0, query)
    const segments = splitPath(path)
    for (const { before, after } of templates.get(method) ?? []) {
      const end = findIdEnd(segments, before, after)
      if (end === undefined) continue
      if (end === before.length + 1) return ascii
      const id = segments.slice(before.length, end).join('%2F')
      const routed = ['', ...before, id, ...segments.slice(end)].join('/')
      return query === -1 ? routed : routed + ascii.slice(query)
    }
    return ascii
  }
}

/**
 * Removes a repeated `/v1`. Anthropic's SDKs append `/v1` to a base URL; if the URL already ends in it, as other SDKs
 * require, the first `v1` would become a part of the session id.
 */
function removeRepeatedVersion(url: string): string {
  return url.replace(/\/v1(\/v1\/(?:messages(?:\/count_tokens)?|models)(?:\?|$))/, '$1')
}

function splitPath(path: string): string[] {
  return path.split('/').slice(1)
}

/** Returns the index after the segments of the id; undefined if the path does not match the template. */
function findIdEnd(
  segments: string[],
  before: readonly string[],
  after: readonly string[],
): number | undefined {
  const begin = before.length
  if (before.some((segment, index) => segments[index] !== segment)) return undefined
  if (RESERVED_SEGMENTS.has(segments[begin] ?? '')) return undefined
  const fits = (end: number) =>
    after.every((segment, index) => isOpen(segment) || segments[end + index] === segment)
  if (after.at(-1) !== '*') {
    const end = segments.length - after.length
    return end > begin && fits(end) ? end : undefined
  }
  // `*` may also match slashes, so the id ends at the first position where the route matches.
  for (let end = begin + 1; end + after.length <= segments.length; end++) if (fits(end)) return end
  return undefined
}

function isOpen(segment: string): boolean {
  return segment === '*' || segment.startsWith(':')
}

/** Percent-encodes bytes outside ASCII. Some clients send raw UTF-8, which Node decodes as one character per byte. */
function encodeNonAscii(url: string): string {
  return url.replace(/[\x80-\xff]/g, (byte) => `%${byte.charCodeAt(0).toString(16).toUpperCase()}`)
}

/**
 * Returns the origin-form of a request target (RFC 9112, section 3.2): the path and query of a target in absolute form,
 * whose host is ignored because the server has one origin; any other target unchanged.
 */
export function toOriginForm(target: string): string {
  const match = /^https?:\/\/[^/?#]*([^#]*)/i.exec(target)
  if (match === null) return target
  const [, rest = ''] = match
  return rest.startsWith('/') ? rest : `/${rest}`
}
