/** Routes that add trainer data to sampled tokens of ended turns, such as a teacher's logprobs. */
import type { FastifyPluginCallback } from 'fastify'
import type { Backend } from '../../../engines/port/backend.ts'
import type { Sessions } from '../../../session/state/sessions.ts'
import { scoreSession } from '../../../session/trainer-data/teacher.ts'
import { toTokenData } from '../../../session/trainer-data/trainer-data.ts'
import type { TurnStore } from '../../../store/port/turn-store.ts'
import { describe } from '../../schemas/described.ts'
import { toTypedApp } from '../../schemas/typed-app.ts'
import { readAnyBodyAsJson } from '../../transport/json-body.ts'
import { createDisconnectSignal } from '../../transport/on-close.ts'
import { AddedDetails, DetailsBody, ScoreBody, ScoredSession } from './detail-schemas.ts'
import { withTurnNames } from './named-turns.ts'
import { SessionParams } from './schemas.ts'

interface DetailRoutesOptions {
  sessions: Sessions
  store: TurnStore
  backend: Backend
}

export const detailRoutes: FastifyPluginCallback<DetailRoutesOptions> = (
  plain,
  { sessions, store, backend },
  done,
) => {
  const app = toTypedApp(plain)
  readAnyBodyAsJson(app)
  app.post(
    '/sessions/:sessionId/details',
    describe('sessions', "Add a trainer's data to sampled tokens", AddedDetails, {
      description:
        'Adds all values, or none if one is invalid, and replaces existing values. See docs/details.md.',
      params: SessionParams,
      body: DetailsBody,
    }),
    async ({ params: { sessionId }, body }) => {
      await sessions.get(sessionId)
      const tokenData = await toTokenData(store, sessionId, withTurnNames(body))
      await store.addDetails(sessionId, tokenData)
      return { session_id: sessionId, turns: tokenData.length }
    },
  )
  app.post(
    '/sessions/:sessionId/score',
    describe('sessions', "Add a teacher's logprobs to sampled tokens", ScoredSession, {
      description: 'An engine or worker scores each row. No logprobs are stored if one row cannot be scored.',
      params: SessionParams,
      body: ScoreBody,
    }),
    async ({ params: { sessionId }, body }, reply) => {
      await sessions.get(sessionId)
      const scored = await scoreSession({ store, backend }, sessionId, body, createDisconnectSignal(reply))
      return { session_id: sessionId, ...scored }
    },
  )
  done()
}
