/**
 * Routes that return recorded turns as traces, for trainers that build their rows themselves. Paths and fields are
 * those of rLLM's model gateway (`rllm-model-gateway`: `server.py`, `TraceRecord` in `models.py`), whose client
 * AgentCore's trainers also use.
 */
import type { FastifyPluginCallback } from 'fastify'
import { ProxyError } from '../../../../base/errors.ts'
import {
  isTrace,
  parseTraceId,
  readTraces,
  type TraceQuery,
  type TurnTrace,
} from '../../../session/trajectories/traces.ts'
import { NO_MARKS } from '../../../store/port/marks.ts'
import type { TurnStore } from '../../../store/port/turn-store.ts'
import { describe } from '../../schemas/described.ts'
import { toTypedApp } from '../../schemas/typed-app.ts'
import { readAnyBodyAsJson } from '../../transport/json-body.ts'
import { DetailSelection } from '../sessions/details.ts'
import { streamJson } from '../sessions/json-stream.ts'
import { SessionParams } from '../sessions/schemas.ts'
import * as schemas from './schemas.ts'
import { graphToWire, tracesToWire, traceToWire } from './serialise.ts'

interface TracesRoutesOptions {
  store: TurnStore
}

export const tracesRoutes: FastifyPluginCallback<TracesRoutesOptions> = (plain, options, done) => {
  const { store } = options
  const show = (details: string | undefined) => ({ reader: store, choice: DetailSelection.parse(details) })
  const app = toTypedApp(plain)
  readAnyBodyAsJson(app)

  app.get(
    '/sessions/:sessionId/traces',
    describe(
      'traces',
      'Read the completed turns of a session in the order of their indices',
      schemas.TracesOrGraph,
      {
        description: 'The list is empty for a session that does not exist, or has no completed turn.',
        params: SessionParams,
        querystring: schemas.TracesQuery,
      },
    ),
    async ({ params: { sessionId }, query }, reply) => {
      const [source, details] = [[store, sessionId, toTraceQuery(query)] as const, show(query.details)]
      const isGraph = query.format === 'compact'
      return streamJson(reply, (isGraph ? graphToWire : tracesToWire)(readTraces(...source), details))
    },
  )
  app.post(
    '/traces/query',
    describe('traces', 'Read the completed turns of several sessions', schemas.Traces, {
      description: 'Session by session, in the order of the ids; a session that does not exist has none.',
      body: schemas.TracesQueryBody,
    }),
    async ({ body }, reply) =>
      streamJson(
        reply,
        tracesToWire(readAllTraces(store, body.session_ids, toTraceQuery(body)), show(body.details)),
      ),
  )
  app.get(
    '/traces/:traceId',
    describe('traces', 'Read one completed turn', schemas.Trace, {
      params: schemas.TraceParams,
      querystring: schemas.TraceQuery,
    }),
    async ({ params, query }, reply) => {
      const { sessionId, turnId } = parseTraceId(params.traceId)
      const turn = await store.getTurn(sessionId, turnId)
      if (turn === undefined || !isTrace(turn)) throw new ProxyError('trace_not_found', 'Trace not found')
      const marks = (await store.getSession(sessionId))?.marks.turns[turn.index] ?? NO_MARKS
      return streamJson(reply, traceToWire({ turn, marks }, show(query.details)))
    },
  )
  done()
}

async function* readAllTraces(
  store: TurnStore,
  sessionIds: readonly string[],
  query: TraceQuery,
): AsyncGenerator<TurnTrace> {
  for (const sessionId of sessionIds) yield* readTraces(store, sessionId, query)
}

function toTraceQuery({ since, limit }: { since?: number; limit?: number }): TraceQuery {
  return { sinceMs: since === undefined ? undefined : since * 1_000, limit }
}
