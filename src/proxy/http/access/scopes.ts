/** Authorization: decides which callers may use the routes of each scope. */
import { ProxyError } from '../../../base/errors.ts'
import { parseRun } from '../../session/state/session-id.ts'

/**
 * The access that a route requires. `open`: none. `admin`, `worker`: a key of this scope. `view`: a key that may read
 * stored data. `metrics`: a key that may read metrics. `agent`: the key of the session that the request belongs to.
 * `node`: the signature of another node of the database, even on a proxy without keys.
 */
export type Scope = 'open' | 'admin' | 'worker' | 'agent' | 'view' | 'metrics' | 'node'

/** The sender of a request, as its key or signature identifies it. */
export type Caller =
  /** The proxy has no keys: every caller may use every route. */
  | { is: 'anyone' }
  | { is: 'admin' }
  | { is: 'worker' }
  /** May read stored data and metrics, but change nothing. */
  | { is: 'view' }
  /** May read metrics, which identify no session. */
  | { is: 'metrics' }
  /** Has the key of a session; with a tag, only of the session with this id that has this tag in the store. */
  | { is: 'agent'; sessionId: string; keyTag: string | null }
  /** The trainer of a run, who has the rights of an admin on the sessions of the run, and no others. */
  | { is: 'run'; run: string }
  /** Another node of the database, identified by its lease, on a route for nodes. */
  | { is: 'node'; lease: number }
  /** Has no key, or only unknown ones. */
  | { is: 'stranger'; hasKey: boolean }

/**
 * Decides whether a caller may use a route. An admin may send an agent's requests, because `POST /sessions/{id}`
 * returns the agent key anyway, but may not connect as a worker, which receives the prompts of all sessions and
 * responds for the model.
 * @param route the session in the path, if there is one, and whether the route itself restricts a run key to its run
 * @returns the error for a caller without access; undefined: the caller has access
 */
export function checkScope(
  scope: Scope,
  caller: Caller,
  {
    sessionId,
    acceptsRunKeys = false,
  }: { sessionId?: string | undefined; acceptsRunKeys?: boolean | undefined } = {},
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
      return acceptsRunKeys ? undefined : checkRun(scope, caller.run, sessionId)
    case 'agent':
      return checkAgent(scope, caller.sessionId, sessionId)
  }
}

/** Rejects every caller that is not a node of the database, whatever its key. */
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
 * Returns the run to which a request is restricted: the run of the caller's key, or else the requested one.
 * @param requested the run in the request; undefined: none
 * @throws ProxyError `forbidden` if the key belongs to another run than the requested one
 */
export function getRequestedRun(caller: Caller, requested?: string): string | undefined {
  if (caller.is !== 'run' || requested === caller.run) return requested
  if (requested === undefined) return caller.run
  throw createForbiddenError(`This key is for the run ${caller.run} only`)
}

/**
 * Checks that a session belongs to the run of the caller's key, if it is a run key.
 * @throws ProxyError `forbidden`
 */
export function rejectForeignRun(caller: Caller, sessionId: string): void {
  const rejection = caller.is === 'run' ? checkForeignRun(caller.run, sessionId) : undefined
  if (rejection) throw rejection
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

/**
 * Creates the error for a request without a valid key.
 * @param needs the key that the request requires: `an admin key`
 * @param hasKey whether the request had another key
 */
export function createUnauthorizedError(needs: string, hasKey: boolean): ProxyError {
  const message = hasKey
    ? `The key is not valid: this request needs ${needs}`
    : `No key: this request needs ${needs}, as bearer token, x-api-key or x-goog-api-key`
  return new ProxyError('unauthorized', message)
}

function createForbiddenError(message: string): ProxyError {
  return new ProxyError('forbidden', message)
}
