/** Routes with which trainers manage sessions. The routes that read sessions are in `read-routes.ts`. */
import { randomUUID } from 'node:crypto'
import type { FastifyPluginCallback } from 'fastify'
import type { Static } from 'typebox'
import { ProxyError } from '../../../../base/errors.ts'
import type { NewSessionRequest } from '../../../session/state/new-session.ts'
import { getRunIdPrefix } from '../../../session/state/session-id.ts'
import type { Sessions } from '../../../session/state/sessions.ts'
import { listEverySession } from '../../../store/port/every-session.ts'
import type { TurnReader } from '../../../store/port/turn-store.ts'
import type { Keyring } from '../../access/keyring.ts'
import { getRequestedRun, rejectForeignRun } from '../../access/scopes.ts'
import { describe, Nothing } from '../../schemas/described.ts'
import { type SchemaApp, toTypedApp } from '../../schemas/typed-app.ts'
import { readAnyBodyAsJson } from '../../transport/json-body.ts'
import { createDisconnectSignal } from '../../transport/on-close.ts'
import { MarksBody } from './mark-schemas.ts'
import { withTurnNames } from './named-turns.ts'
import * as schemas from './schemas.ts'
import { sessionToWire } from './serialise.ts'

interface SessionsRoutesOptions {
  sessions: Sessions
  store: Pick<TurnReader, 'listSessions'>
  keyring: Keyring
}

export const sessionsRoutes: FastifyPluginCallback<SessionsRoutesOptions> = (plain, options, done) => {
  const app = toTypedApp(plain)
  readAnyBodyAsJson(app)
  creationRoutes(app, options)
  lifeRoutes(app, options)
  done()
}

function creationRoutes(app: SchemaApp, { sessions, keyring }: SessionsRoutesOptions): void {
  const create = async (request: NewSessionRequest) => {
    const { created, session } = await sessions.create(request)
    return {
      session_id: session.sessionId,
      status: created ? 'created' : 'exists',
      agent_key: keyring.getAgentKey(session.sessionId, session.keyTag),
    }
  }
  app.post(
    '/sessions',
    {
      config: { acceptsRunKeys: true },
      ...describe('sessions', 'Create a session', schemas.CreatedSession, { body: schemas.NewSessionBody }),
    },
    async (request) => {
      const { body, caller } = request
      const isUnnamed = caller.is === 'run' && body.session_id === undefined
      const named = isUnnamed ? { session_id: getRunIdPrefix(caller.run) + randomUUID() } : {}
      const session = toNewSessionRequest({ ...body, ...named })
      if (session.sessionId !== undefined) rejectForeignRun(caller, session.sessionId)
      const created = await create(session)
      request.createdSessionId = created.session_id
      return created
    },
  )
  app.post(
    '/sessions/:sessionId',
    describe(
      'sessions',
      'Create a session with this id, or return the existing one',
      schemas.CreatedSession,
      {
        params: schemas.SessionParams,
        body: schemas.NewSessionBody,
      },
    ),
    async ({ params: { sessionId }, body }) => {
      if (body.session_id !== undefined && body.session_id !== sessionId) {
        throw new ProxyError('invalid_request', "'session_id' is not the one in the path", {
          param: 'session_id',
        })
      }
      return create(toNewSessionRequest({ ...body, session_id: sessionId }))
    },
  )
  app.get(
    '/admin/runs/:run/key',
    describe('sessions', 'Read the key of the trainer of this run', schemas.RunKey, {
      params: schemas.RunParams,
    }),
    async ({ params: { run } }) => {
      getRunIdPrefix(run)
      const key = keyring.getRunKey(run)
      if (key !== undefined) return { run, run_key: key }
      throw new ProxyError('unsupported', 'Runs have no keys: start the proxy with --agent-key-secret')
    },
  )
}

function lifeRoutes(app: SchemaApp, { sessions, store }: SessionsRoutesOptions): void {
  const changes = {
    complete: {
      summary: 'End a session as completed',
      response: schemas.EndedSession,
      change: (id: string) => runUnlessMissing(id, async () => sessionToWire(await sessions.complete(id))),
    },
    abort: {
      summary: 'End a session as aborted',
      response: schemas.EndedSession,
      change: (id: string) => runUnlessMissing(id, async () => sessionToWire(await sessions.abort(id))),
    },
    reset: {
      summary: 'Delete the turns of a session and reopen it',
      response: schemas.Session,
      change: async (id: string) => sessionToWire(await sessions.reset(id)),
    },
  }
  for (const [name, { summary, response, change }] of Object.entries(changes)) {
    app.post(
      `/sessions/:sessionId/${name}`,
      {
        config: { ofOwner: 'change' },
        ...describe('sessions', summary, response, { params: schemas.SessionParams, body: Nothing }),
      },
      ({ params }) => change(params.sessionId),
    )
  }
  app.post(
    '/sessions/:sessionId/reward',
    describe('sessions', 'Set the reward', schemas.Session, {
      params: schemas.SessionParams,
      body: schemas.RewardBody,
    }),
    async ({ params, body: { components = {}, agent_roles, lines, ...reward } }) => {
      if (agent_roles !== undefined && lines !== undefined)
        throw new ProxyError('invalid_request', "'lines' is the former name of 'agent_roles': send one", {
          param: 'lines',
        })
      const roles = agent_roles ?? lines
      const named = { ...withTurnNames(reward), components, ...(roles && { lines: roles }) }
      return sessionToWire(await sessions.setReward(params.sessionId, named))
    },
  )
  app.patch(
    '/sessions/:sessionId',
    describe('sessions', 'Set labels and notes of a session or its turns', schemas.Session, {
      description: 'Absent fields are unchanged.',
      params: schemas.SessionParams,
      body: MarksBody,
    }),
    async ({ params, body }) =>
      sessionToWire(await sessions.updateMarks(params.sessionId, withTurnNames(body))),
  )
  app.get(
    '/sessions/:sessionId/wait',
    {
      config: { scope: 'view' },
      ...describe('sessions', 'Wait until a session is completed or aborted', schemas.WaitedSession, {
        params: schemas.SessionParams,
        querystring: schemas.WaitQuery,
      }),
    },
    async ({ params, query }, reply) => {
      const timeoutMs = query.timeout_s * 1000
      const { session, timedOut } = await sessions.wait(
        params.sessionId,
        timeoutMs,
        createDisconnectSignal(reply),
      )
      return { ...sessionToWire(session), timed_out: timedOut }
    },
  )
  app.delete(
    '/sessions/:sessionId',
    {
      config: { ofOwner: 'change' },
      ...describe('sessions', 'Remove a session and its turns', schemas.DeletedSession, {
        params: schemas.SessionParams,
      }),
    },
    async ({ params: { sessionId } }) => {
      const deleted = await sessions.delete(sessionId)
      return { session_id: sessionId, status: deleted ? 'deleted' : 'not_found', deleted: deleted ? 1 : 0 }
    },
  )
  app.post(
    '/sessions/batch_delete',
    {
      config: { acceptsRunKeys: true },
      ...describe('sessions', 'Remove sessions and their turns', schemas.DeletedSessions, {
        description: 'Sessions that do not exist are not counted.',
        body: schemas.BatchDeleteBody,
      }),
    },
    async ({ body, caller }) => {
      const run = body.run === undefined ? undefined : getRequestedRun(caller, body.run)
      const ids = new Set(body.session_ids)
      for (const sessionId of ids) rejectForeignRun(caller, sessionId)
      const ofRun =
        run === undefined ? [] : listEverySession(store, { idPrefix: getRunIdPrefix(run), order: 'asc' })
      for await (const { sessionId } of ofRun) ids.add(sessionId)
      const deleted = await Promise.all([...ids].map((sessionId) => sessions.delete(sessionId)))
      return { deleted: deleted.filter(Boolean).length }
    },
  )
}

/**
 * Runs a change, and returns the status `not_found` instead of an error if the session does not exist. Trainers end
 * sessions in a `finally`, whether or not the agent has sent a request; an error there would fail the whole rollout.
 */
async function runUnlessMissing(sessionId: string, change: () => Promise<object>): Promise<object> {
  try {
    return await change()
  } catch (error) {
    if (!(error instanceof ProxyError) || error.code !== 'session_not_found') throw error
    return { session_id: sessionId, status: 'not_found', completed: false }
  }
}

function toNewSessionRequest(body: Static<typeof schemas.NewSessionBody>): NewSessionRequest {
  const { session_id: sessionId, sampling_params: samplingParams, trust_agent: trustAgent, ...others } = body
  const { edited_calls: editedCalls, continue_responses: continueResponses, ttl_s: ttlS, ...rest } = others
  // Sessions store durations in milliseconds.
  const ttlMs = ttlS === undefined || ttlS === null ? ttlS : ttlS * 1000
  return { ...rest, sessionId, samplingParams, trustAgent, editedCalls, continueResponses, ttlMs }
}
