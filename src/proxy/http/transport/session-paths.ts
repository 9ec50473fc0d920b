/**
 * Session ids with slashes, such as `harbor/hello-world:0`, in paths where clients wrote the slashes as they are. The
 * router knows one segment for an id; so before it looks, the slashes of the id become `%2F`. Everything after that,
 * the guard before all, sees one and the same id.
 *
 * Where an id ends, the routes themselves tell: the longest end of a route that the path has, too, is not part of it.
 * Whoever wants a session of the name `a/complete` writes its slash as `%2F`.
 */
import { RESERVED_SEGMENTS } from '../../session/state/session-id.ts'

/** Parameters that hold a session's id; a trace's begins with it. */
const ID_PARAMS: ReadonlySet<string> = new Set([':sessionId', ':traceId'])

interface Template {
  /** The segments before the id. */
  readonly before: readonly string[]
  /** Those behind it; `:name` stands for any, `*` at the end for any number of them. */
  readonly behind: readonly string[]
}

/** Makes the function that brings a request's URL into the form that the router knows. */
export function sessionPaths(routes: readonly { method: string; path: string }[]) {
  const templates = new Map<string, Template[]>()
  for (const { method, path } of routes) {
    const segments = splitPath(path)
    const place = segments.findIndex((segment) => ID_PARAMS.has(segment))
    if (place === -1) continue
    const template = { before: segments.slice(0, place), behind: segments.slice(place + 1) }
    templates.set(method, [...(templates.get(method) ?? []), template])
  }
  for (const list of templates.values()) list.sort((a, b) => b.behind.length - a.behind.length)

  return (method: string, url: string): string => {
    const ascii = withOneVersion(asAscii(url))
    const query = ascii.indexOf('?')
    const path = query === -1 ? ascii : ascii.slice(0, query)
    const segments = splitPath(path)
    for (const { before, behind } of templates.get(method) ?? []) {
      const end = findIdEnd(segments, before, behind)
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
 * Anthropic's SDKs put `/v1` behind a base URL themselves: with one that ends in it, as it does for all others, `v1` would
 * become a part of the session's id.
 */
function withOneVersion(url: string): string {
  return url.replace(/\/v1(\/v1\/(?:messages(?:\/count_tokens)?|models)(?:\?|$))/, '$1')
}

function splitPath(path: string): string[] {
  return path.split('/').slice(1)
}

/** Where the segments of the id end; undefined if the path is none of this template. */
function findIdEnd(
  segments: string[],
  before: readonly string[],
  behind: readonly string[],
): number | undefined {
  const begin = before.length
  if (before.some((segment, place) => segments[place] !== segment)) return undefined
  if (RESERVED_SEGMENTS.has(segments[begin] ?? '')) return undefined
  const fits = (end: number) =>
    behind.every((segment, place) => isOpen(segment) || segments[end + place] === segment)
  if (behind.at(-1) !== '*') {
    const end = segments.length - behind.length
    return end > begin && fits(end) ? end : undefined
  }
  // What is behind the id may have slashes, too: the first place where the route goes on.
  for (let end = begin + 1; end + behind.length <= segments.length; end++) if (fits(end)) return end
  return undefined
}

function isOpen(segment: string): boolean {
  return segment === '*' || segment.startsWith(':')
}

/** Some clients send UTF-8 as it is, which Node reads byte by byte. */
function asAscii(url: string): string {
  return url.replace(/[\x80-\xff]/g, (byte) => `%${byte.charCodeAt(0).toString(16).toUpperCase()}`)
}
