/**
 * Routes of the second contract of rLLM's model gateway (`rllm_model_gateway/v2`: `server.py`, `client.py`): sessions
 * are created and read below `/admin`, and an agent key is valid until its session is removed.
 */
import type { FastifyPluginCallback } from 'fastify'
import Type from 'typebox'
import { ProxyError } from '../../../../base/errors.ts'
import { encodeSessionId } from '../../../session/state/session-id.ts'
import type { Sessions } from '../../../session/state/sessions.ts'
import { readTraces } from '../../../session/trajectories/traces.ts'
import type { TurnStore } from '../../../store/port/turn-store.ts'
import { createKeyTag } from '../../access/agent-key.ts'
import type { Keyring } from '../../access/keyring.ts'
import { describe, ErrorReply } from '../../schemas/described.ts'
import { toTypedApp } from '../../schemas/typed-app.ts'
import { readAnyBodyAsJson } from '../../transport/json-body.ts'
import { streamJson } from '../sessions/json-stream.ts'
import { SessionParams } from '../sessions/schemas.ts'
import { NewGatewaySessionBody, SessionCredentials, SessionTraces } from './schemas.ts'
import { sessionTracesToWire } from './serialise.ts'

interface GatewayRoutesOptions {
  sessions: Sessions
  store: TurnStore
  keyring: Keyring
}

export const gatewayRoutes: FastifyPluginCallback<GatewayRoutesOptions> = (plain, options, done) => {
  const { sessions, store, keyring } = options
  const app = toTypedApp(plain)
  readAnyBodyAsJson(app)

  app.post(
    '/admin/sessions',
    describe(
      'gateway',
      'Create a session with an agent key that is valid until the session is removed',
      SessionCredentials,
      {
        body: NewGatewaySessionBody,
      },
    ),
    async (request) => {
      const { session_id: wanted, sampling_params: samplingParams } = request.body
      rejectWithoutAgentKeys(keyring)
      const keyTag = createKeyTag()
      const { created, session } = await sessions.create({
        sessionId: wanted,
        samplingParams,
        ...(!keyring.isOpen && { keyTag }),
      })
      const { sessionId } = session
      if (!created) throw new ProxyError('session_exists', `Session ${sessionId} exists already`)
      request.createdSessionId = sessionId
      // On an open proxy a session's key is its id.
      return {
        session_id: sessionId,
        agent_key: keyring.getAgentKey(sessionId, keyTag) ?? encodeSessionId(sessionId),
      }
    },
  )
  app.get(
    '/admin/sessions/:sessionId',
    {
      config: { scope: 'view' },
      ...describe(
        'gateway',
        'Read the completed turns of a session, with the parent of each',
        SessionTraces,
        { params: SessionParams },
      ),
    },
    async ({ params: { sessionId } }, reply) => {
      const session = await sessions.get(sessionId)
      return streamJson(reply, sessionTracesToWire(session, readTraces(store, sessionId, {})))
    },
  )
  app.delete(
    '/admin/sessions/:sessionId',
    {
      schema: {
        ...describe('gateway', 'Remove a session, its turns and the key of its agent', Type.Null(), {
          params: SessionParams,
        }).schema,
        response: {
          204: Type.Null({ description: 'The session has been removed' }),
          '4xx': ErrorReply,
          '5xx': ErrorReply,
        },
      },
    },
    async ({ params: { sessionId } }, reply) => {
      const deleted = await sessions.delete(sessionId)
      if (!deleted) throw new ProxyError('session_not_found', 'Session not found')
      return reply.code(204).send(null)
    },
  )
  done()
}

/** Rejects a request if agents have no keys. @throws ProxyError `unsupported` on a proxy with keys but no secret */
function rejectWithoutAgentKeys(keyring: Keyring): void {
  if (keyring.isOpen || keyring.getAgentKey('any') !== undefined) return
  throw new ProxyError('unsupported', 'Agents have no keys: start the proxy with --agent-key-secret')
}
