/** What may be the name of a session. */
import { randomUUID } from 'node:crypto'
import { ProxyError } from '../../../base/errors.ts'

/**
 * First path segments that the API itself uses. A session of such a name would have a base URL that is not its own,
 * so no session's id begins with one.
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

/** The first segment of ids `runs/{run}/{name}`: several training jobs record in one database, each in a run of its own. */
const RUNS = 'runs'

/** Of its UTF-8. */
export const MAX_SESSION_ID_BYTES = 512

/** Control characters, and halves of a character, which have no UTF-8. */
const NO_TEXT = /[\p{Cc}\p{Cs}]/u

/** Clients, and servers on the way, take these out of a path, and then it is another session's. */
const UNSTABLE_SEGMENTS: readonly string[] = ['', '.', '..']

/** Whatever a URL can carry to its end unchanged: `task-7`, `harbor/hello-world:0`, `größe +1`. */
export function isSessionId(text: string): boolean {
  return problemOf(text) === undefined
}

/** @returns `text` itself. @throws ProxyError `invalid_request` that says what is wrong with it */
export function parseSessionId(text: string): string {
  const problem = problemOf(text)
  if (problem === undefined) return text
  throw new ProxyError('invalid_request', `Not a session id: ${problem}`, { param: 'session_id' })
}

function problemOf(text: string): string | undefined {
  if (text === '' || Buffer.byteLength(text) > MAX_SESSION_ID_BYTES)
    return `it takes 1 to ${MAX_SESSION_ID_BYTES} bytes`
  if (NO_TEXT.test(text)) return 'it holds a control character, or half of a character'
  const segments = text.split('/')
  const unstable = segments.find((segment) => UNSTABLE_SEGMENTS.includes(segment))
  if (unstable !== undefined)
    return `'${unstable}' between its slashes would not outlast the way of a URL through clients and servers`
  const [first = ''] = segments
  if (first === RUNS && segments.length < 3) return 'a session of a run is named runs/{run}/{name}'
  return RESERVED_SEGMENTS.has(first) ? `"${first}" is reserved` : undefined
}

/**
 * Sessions of requests that name none. Turn ids of such a session begin with what its id ends with, so that the id of a
 * response alone finds the session.
 */
const BARE_SESSION = /^bare-([\da-f]{8}-[\da-f]{4}-[\da-f]{4})$/

const SHARED_CHARS = '00000000-0000-4000'.length

/** Returns the id of a new session for a request that names none. */
export function newBareSessionId(): string {
  return bareSessionOf(randomUUID())
}

/** Returns the id of the session that a turn belongs to, if its request named none. */
export function bareSessionOf(turnId: string): string {
  return `bare-${turnId.slice(0, SHARED_CHARS)}`
}

/** Returns a new turn id, a UUID. */
export function newTurnId(sessionId: string): string {
  const turnId = randomUUID()
  const shared = BARE_SESSION.exec(sessionId)?.[1]
  return shared === undefined ? turnId : shared + turnId.slice(SHARED_CHARS)
}

/** The run that the session belongs to; undefined: to none. */
export function runOf(sessionId: string): string | undefined {
  const [first, run, name] = sessionId.split('/', 3)
  return first === RUNS && name !== undefined ? run : undefined
}

/** What the ids of all sessions of the run begin with. @throws ProxyError `invalid_request` for no name of a run */
export function idPrefixOfRun(run: string): string {
  const prefix = `${RUNS}/${run}/`
  if (!run.includes('/') && isSessionId(`${prefix}s`)) return prefix
  throw new ProxyError('invalid_request', `Not a run's name, which is one segment of a path: '${run}'`, {
    param: 'run',
  })
}

/** The id in ASCII without spaces, as keys hold it: the characters of most ids stay, the others are percent-encoded. */
export function encodeSessionId(sessionId: string): string {
  return sessionId.replace(/[^A-Za-z0-9._~:-]+/g, encodeURIComponent)
}

/** @returns undefined for what {@link encodeSessionId} never makes: an id has one key, not several */
export function decodeSessionId(encoded: string): string | undefined {
  try {
    const sessionId = decodeURIComponent(encoded)
    return encodeSessionId(sessionId) === encoded ? sessionId : undefined
  } catch {
    return undefined
  }
}
