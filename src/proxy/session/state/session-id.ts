/** Validates, creates and encodes session ids. */
import { randomUUID } from 'node:crypto'
import { ProxyError } from '../../../base/errors.ts'

/**
 * The first path segments of the API's routes. The id of a session must not begin with one, because its base URL would
 * be that of a route.
 */
export const RESERVED_SEGMENTS: ReadonlySet<string> = new Set([
  'admin',
  'consumers',
  'docs',
  'events',
  'favicon.ico',
  'groups',
  'forest',
  'health',
  'metrics',
  'openapi.json',
  'robots.txt',
  'rollouts',
  'search',
  'sessions',
  'traces',
  'ui',
  'v1',
  'v1beta',
  'ws',
])

/**
 * The first segment of ids of the form `runs/{run}/{name}`. Training jobs that share one database have separate runs.
 */
const RUNS = 'runs'

/** The maximum size of an id in UTF-8. */
export const MAX_SESSION_ID_BYTES = 512

/** Matches control characters, and unpaired surrogates, which UTF-8 cannot encode. */
const NO_TEXT = /[\p{Cc}\p{Cs}]/u

/** The segments that clients and intermediate servers remove from a path, so that it would name another session. */
const UNSTABLE_SEGMENTS: readonly string[] = ['', '.', '..']

/** Returns whether a text is a valid session id, such as `task-7`, `harbor/hello-world:0` or `größe +1`. */
export function isSessionId(text: string): boolean {
  return findProblem(text) === undefined
}

/** Validates a session id. @returns `text` itself @throws ProxyError `invalid_request` with the problem */
export function parseSessionId(text: string): string {
  const problem = findProblem(text)
  if (problem === undefined) return text
  throw new ProxyError('invalid_request', `Not a session id: ${problem}`, { param: 'session_id' })
}

/** Returns the reason why a text is not a valid session id; undefined: it is one. */
function findProblem(text: string): string | undefined {
  if (text === '' || Buffer.byteLength(text) > MAX_SESSION_ID_BYTES)
    return `it must have 1 to ${MAX_SESSION_ID_BYTES} bytes`
  if (NO_TEXT.test(text)) return 'it contains a control character, or an unpaired surrogate'
  const segments = text.split('/')
  const unstable = segments.find((segment) => UNSTABLE_SEGMENTS.includes(segment))
  if (unstable !== undefined) return `clients and servers remove the segment '${unstable}' from a URL`
  const [first = ''] = segments
  if (first === RUNS && segments.length < 3) return 'a session of a run is named runs/{run}/{name}'
  return RESERVED_SEGMENTS.has(first) ? `"${first}" is reserved` : undefined
}

/**
 * Matches the id of a session that was created for a request without one. The ids of its turns begin with the part
 * after `bare-`, so that the id of a response suffices to find the session.
 */
const BARE_SESSION = /^bare-([\da-f]{8}-[\da-f]{4}-[\da-f]{4})$/

/** The length of the beginning of a turn id that the session id contains. */
const SHARED_CHARS = '00000000-0000-4000'.length

/** Creates the id of a session for a request that names none. */
export function newBareSessionId(): string {
  return findBareSession(randomUUID())
}

/** Returns the id of a turn's session, if the request of the turn named no session. */
export function findBareSession(turnId: string): string {
  return `bare-${turnId.slice(0, SHARED_CHARS)}`
}

/** Creates the id of a turn in the session, a UUID. */
export function newTurnId(sessionId: string): string {
  const turnId = randomUUID()
  const shared = BARE_SESSION.exec(sessionId)?.[1]
  return shared === undefined ? turnId : shared + turnId.slice(SHARED_CHARS)
}

/** Returns the run of a session; undefined: it has none. */
export function parseRun(sessionId: string): string | undefined {
  const [first, run, name] = sessionId.split('/', 3)
  return first === RUNS && name !== undefined ? run : undefined
}

/**
 * Returns the prefix of the session ids of a run.
 * @throws ProxyError `invalid_request` for an invalid name of a run
 */
export function getRunIdPrefix(run: string): string {
  const prefix = `${RUNS}/${run}/`
  if (!run.includes('/') && isSessionId(`${prefix}s`)) return prefix
  throw new ProxyError('invalid_request', `Not a run's name, which is one segment of a path: '${run}'`, {
    param: 'run',
  })
}

/**
 * Encodes a session id in ASCII without spaces, as in keys. Characters outside of `A-Za-z0-9._~:-` are percent-encoded.
 */
export function encodeSessionId(sessionId: string): string {
  return sessionId.replace(/[^A-Za-z0-9._~:-]+/g, encodeURIComponent)
}

/**
 * Decodes a session id.
 * @returns undefined for text that {@link encodeSessionId} never returns, since an id must have only one encoded form
 */
export function decodeSessionId(encoded: string): string | undefined {
  try {
    const sessionId = decodeURIComponent(encoded)
    return encodeSessionId(sessionId) === encoded ? sessionId : undefined
  } catch {
    return undefined
  }
}
