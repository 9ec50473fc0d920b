/** Authorization: the scopes of routes, the callers that keys identify, and the decision between them. */
import { ProxyError } from '../../../base/errors.ts'
import { parseRun } from '../../session/state/session-id.ts'

/**
 * The access that a route requires. `open`: none. `admin`, `worker`: a key of this scope. `view`: a key that may read
 * stored data and change nothing. `metrics`: a key for counters. `agent`: the key of the session that the request
 * belongs to. `node`: the signature of another node of the database, also on a proxy without keys.
 */
export type Scope = 'open' | 'admin' | 'worker' | 'agent' | 'view' | 'metrics' | 'node'

export type Caller =
  /** The proxy has no keys: every caller may use every route. */
  | { is: 'anyone' }
  | { is: 'admin' }
  | { is: 'worker' }
  /** May read everything, and write nothing. */
  | { is: 'view' }
  /** May read figures that identify no session. */
  | { is: 'metrics' }
  /** Has the key of this session; with a tag, of the one session of this name that has this tag in the store. */
  | { is: 'agent'; sessionId: string; keyTag: string | null }
  /** The trainer of a run: may do with the run's sessions whatever an admin may, and nothing else. */
  | { is: 'run'; run: string }
  /** Another node of the database, identified by its lease, on a route for nodes. */
  | { is: 'node'; lease: number }
  /** Has no key, or an unknown one. */
  | { is: 'stranger'; hasKey: boolean }

/**
 * Decides whether a caller may use a route. An admin may make an agent's requests: `POST /sessions/{id}` returns the
 * agent's key anyway. It may not connect as a worker, which sees the prompts of all sessions and responds for the
 * model.
 * @param place the session of the path, if the path names one; and whether the route restricts itself to one run for a
 *   run's key
 * @returns why the caller may not use a route of this scope; undefined if it may
 */
export function checkScope(
  scope: Scope,
  caller: Caller,
  { sessionId, knowsRuns = false }: { sessionId?: string | undefined; knowsRuns?: boolean | undefined } = {},
): ProxyError | undefined {
  if (scope === 'open') return undefined
  if (scope === 'node') return checkNode(caller)
  if (caller.is === 'anyone' || caller.is === 'node') return undefined
  switch (caller.is) {
    case 'stranger':
      return createUnauthorizedError(KEY_NAMES[scope], caller.hasKey)
    case 'admin':
      return scope === 'worker' ? createForbiddenError('An admin key is not for workers') : undefined
    case 'worker':
      return scope === 'worker' ? undefined : createForbiddenError('A worker key is for /ws/worker only')
    case 'view':
      return scope === 'view' || scope === 'metrics'
        ? undefined
        : createForbiddenError('A view key is for reading only')
    case 'metrics':
      return scope === 'metrics'
        ? undefined
        : createForbiddenError('A metrics key is for /metrics and /health')
    case 'run':
      return knowsRuns ? undefined : checkRun(scope, caller.run, sessionId)
    case 'agent':
      return checkAgent(scope, caller.sessionId, sessionId)
  }
}

/** Routes for nodes are closed to every client, whatever its key. */
function checkNode(caller: Caller): ProxyError | undefined {
  if (caller.is === 'node') return undefined
  const isStranger = caller.is === 'stranger' || caller.is === 'anyone'
  const message = 'This route is for the other nodes of the database'
  return isStranger ? new ProxyError('unauthorized', message) : createForbiddenError(message)
}

function checkRun(scope: Scope, run: string, sessionId: string | undefined): ProxyError | undefined {
  if (scope === 'worker' || scope === 'metrics' || sessionId === undefined)
    return createForbiddenError('The key of a run is for the sessions of this run only')
  return checkForeignRun(run, sessionId)
}

function checkForeignRun(run: string, sessionId: string): ProxyError | undefined {
  if (parseRun(sessionId) === run) return undefined
  return createForbiddenError(`This key is for sessions named runs/${run}/… only`)
}

/**
 * Returns the run that a route for runs is restricted to: the caller's, or the requested one.
 * @param requested the run in the request; undefined: none
 * @throws ProxyError `forbidden`
 */
export function getRequestedRun(caller: Caller, requested?: string): string | undefined {
  if (caller.is !== 'run' || requested === caller.run) return requested
  if (requested === undefined) return caller.run
  throw createForbiddenError(`This key is for the run ${caller.run} only`)
}

/**
 * Checks a session on a route for runs. @throws ProxyError `forbidden` for a session of another run than the caller's
 */
export function rejectForeignRun(caller: Caller, sessionId: string): void {
  const refusal = caller.is === 'run' ? checkForeignRun(caller.run, sessionId) : undefined
  if (refusal) throw refusal
}

function checkAgent(scope: Scope, ownSession: string, sessionId = ownSession): ProxyError | undefined {
  if (scope !== 'agent')
    return createForbiddenError('The key of an agent is for the LLM requests of its session only')
  if (sessionId !== ownSession) return createForbiddenError('This key belongs to another session')
  return undefined
}

const KEY_NAMES: Record<Exclude<Scope, 'open' | 'node'>, string> = {
  admin: "an admin key, or the key of the session's run",
  worker: 'a worker key',
  view: 'a view or admin key',
  metrics: 'a metrics, view or admin key',
  agent: "its session's key (agent_key of POST /sessions)",
}

/** @param needs the access that the request lacks: `an admin key` @param hasKey whether it came with another key */
export function createUnauthorizedError(needs: string, hasKey: boolean): ProxyError {
  const message = hasKey
    ? `The key is not valid: this request needs ${needs}`
    : `No key: this request needs ${needs}, as bearer token, x-api-key or x-goog-api-key`
  return new ProxyError('unauthorized', message)
}

function createForbiddenError(message: string): ProxyError {
  return new ProxyError('forbidden', message)
}
