/** Validation and construction of session ids. */
import { randomUUID } from 'node:crypto'
import { ProxyError } from '../../../base/errors.ts'

/**
 * First path segments that the API itself uses. A session of such a name would have the base URL of a route, so no
 * session's id begins with one.
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

/** The first segment of ids `runs/{run}/{name}`: several training jobs share one database, each with its own run. */
const RUNS = 'runs'

/** The limit on an id in UTF-8. */
export const MAX_SESSION_ID_BYTES = 512

/** Control characters, and unpaired surrogates, which have no UTF-8. */
const NO_TEXT = /[\p{Cc}\p{Cs}]/u

/** Segments that clients and intermediate servers remove from a path, which would then name another session. */
const UNSTABLE_SEGMENTS: readonly string[] = ['', '.', '..']

/** Returns whether a URL preserves the text as an id: `task-7`, `harbor/hello-world:0`, `größe +1`. */
export function isSessionId(text: string): boolean {
  return findProblem(text) === undefined
}

/** @returns `text` itself. @throws ProxyError `invalid_request` that states why it is no id */
export function parseSessionId(text: string): string {
  const problem = findProblem(text)
  if (problem === undefined) return text
  throw new ProxyError('invalid_request', `Not a session id: ${problem}`, { param: 'session_id' })
}

function findProblem(text: string): string | undefined {
  if (text === '' || Buffer.byteLength(text) > MAX_SESSION_ID_BYTES)
    return `it takes 1 to ${MAX_SESSION_ID_BYTES} bytes`
  if (NO_TEXT.test(text)) return 'it contains a control character, or an unpaired surrogate'
  const segments = text.split('/')
  const unstable = segments.find((segment) => UNSTABLE_SEGMENTS.includes(segment))
  if (unstable !== undefined) return `clients and servers remove the segment '${unstable}' from a URL`
  const [first = ''] = segments
  if (first === RUNS && segments.length < 3) return 'a session of a run is named runs/{run}/{name}'
  return RESERVED_SEGMENTS.has(first) ? `"${first}" is reserved` : undefined
}

/**
 * The form of the ids of sessions for requests that name none. Turn ids of such a session begin with the end of its id,
 * so that the id of a response suffices to find the session.
 */
const BARE_SESSION = /^bare-([\da-f]{8}-[\da-f]{4}-[\da-f]{4})$/

const SHARED_CHARS = '00000000-0000-4000'.length

/** Returns the id of a new session for a request that names none. */
export function newBareSessionId(): string {
  return findBareSession(randomUUID())
}

/** Returns the id of the session that a turn belongs to, if its request named none. */
export function findBareSession(turnId: string): string {
  return `bare-${turnId.slice(0, SHARED_CHARS)}`
}

/** Returns a new turn id, a UUID. */
export function newTurnId(sessionId: string): string {
  const turnId = randomUUID()
  const shared = BARE_SESSION.exec(sessionId)?.[1]
  return shared === undefined ? turnId : shared + turnId.slice(SHARED_CHARS)
}

/** Returns the run that the session belongs to; undefined: none. */
export function parseRun(sessionId: string): string | undefined {
  const [first, run, name] = sessionId.split('/', 3)
  return first === RUNS && name !== undefined ? run : undefined
}

/**
 * Returns the common prefix of the ids of a run's sessions. @throws ProxyError `invalid_request` for an invalid name of
 * a run
 */
export function getRunIdPrefix(run: string): string {
  const prefix = `${RUNS}/${run}/`
  if (!run.includes('/') && isSessionId(`${prefix}s`)) return prefix
  throw new ProxyError('invalid_request', `Not a run's name, which is one segment of a path: '${run}'`, {
    param: 'run',
  })
}

/**
 * Returns the id in ASCII without spaces, as in keys: most characters are unchanged, the others are percent-encoded.
 */
export function encodeSessionId(sessionId: string): string {
  return sessionId.replace(/[^A-Za-z0-9._~:-]+/g, encodeURIComponent)
}

/** @returns undefined for text that {@link encodeSessionId} never returns: an id has one key, not several */
export function decodeSessionId(encoded: string): string | undefined {
  try {
    const sessionId = decodeURIComponent(encoded)
    return encodeSessionId(sessionId) === encoded ? sessionId : undefined
  } catch {
    return undefined
  }
}
