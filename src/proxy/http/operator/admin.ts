/**
 * Admin routes: pause and resume, the weight version, the secret of nodes, the sweep of expired sessions, the list of
 * open turns.
 */
import type { FastifyPluginCallback, FastifyRequest } from 'fastify'
import Type, { type Static } from 'typebox'
import { nullable } from '../../../protocol/schema/field.ts'
import type { InFlightTurn } from '../../session/state/live-turn.ts'
import type { Sessions } from '../../session/state/sessions.ts'
import type { WeightAnnouncement } from '../../session/turn/weight-announcement.ts'
import { describe, Nothing, STRICT } from '../schemas/described.ts'
import { toTypedApp } from '../schemas/typed-app.ts'
import { readAnyBodyAsJson } from '../transport/json-body.ts'
import type { Controls } from './controls.ts'

interface AdminOptions {
  controls: Controls
  /**
   * Sends a request to the other nodes of the database and returns their responses. Default: there are no other nodes.
   */
  others?: { ask<T>(request: FastifyRequest): Promise<T[]> } | undefined
  weights: WeightAnnouncement
  sessions: Pick<Sessions, 'sweep' | 'deferredSweep' | 'listInFlightTurns'>
}

const Version = Type.Union([Type.String(), Type.Number()])
const WeightVersionBody = Type.Object({ weight_version: nullable(Version) }, STRICT)
const PauseQuery = Type.Object(
  {
    drain_timeout_s: Type.Number({
      minimum: 0,
      maximum: 3_600,
      default: 60,
      description:
        'The time to wait for requests in flight; the pause stays in effect whether or not they have ended',
    }),
  },
  STRICT,
)
const Paused = Type.Object({
  status: Type.Literal('paused'),
  drained: Type.Boolean(),
  in_flight: Type.Integer(),
})
const Resumed = Type.Object({ status: Type.Literal('running') })
const Rotated = Type.Object({ status: Type.Literal('rotated') })
const Flushed = Type.Object({ status: Type.Literal('flushed') })
const SweepBody = Type.Object(
  {
    at_most: Type.Integer({
      minimum: 0,
      default: 0,
      description: 'The number of sessions that one sweep may delete, whatever their share of all sessions',
    }),
  },
  STRICT,
)
const Swept = Type.Object({
  status: Type.Enum(['swept', 'held'], {
    description:
      'held: so many sessions had expired before the start that their deletion is deferred, or requires a larger at_most',
  }),
  deleted: Type.Integer(),
  expired: Type.Integer({ description: 'The number of sessions whose deletion is deferred' }),
  wait_s: Type.Union([Type.Number(), Type.Null()], {
    description: 'The time after which they are deleted without at_most; null: none is deferred',
  }),
})
const OpenTurnsQuery = Type.Object(
  { limit: Type.Integer({ minimum: 0, maximum: 1_000, default: 100 }) },
  STRICT,
)
const OpenTurns = Type.Object({
  turns: Type.Array(
    Type.Object({
      session_id: Type.String(),
      index: Type.Integer(),
      started_at: Type.Number({ description: 'Seconds since the epoch' }),
      open_ms: Type.Integer({ description: 'The time since the turn was opened' }),
      sampled_tokens: Type.Integer({ description: 'The tokens sampled so far' }),
    }),
  ),
  total: Type.Integer({ description: 'The number of open turns' }),
  sampled_tokens: Type.Integer({ description: 'The tokens sampled by all open turns so far' }),
})

export const adminRoutes: FastifyPluginCallback<AdminOptions> = (plain, options, done) => {
  const { controls, weights, sessions, others } = options
  const app = toTypedApp(plain)
  readAnyBodyAsJson(app)

  app.post(
    '/admin/pause',
    describe('admin', 'Queue new requests, and wait for those in flight to end', Paused, {
      querystring: PauseQuery,
    }),
    async ({ query }) => {
      const inFlight = await controls.pause(query.drain_timeout_s * 1_000)
      return { status: 'paused', drained: inFlight === 0, in_flight: inFlight }
    },
  )

  app.post('/admin/resume', describe('admin', 'Serve requests again', Resumed, {}), async () => {
    await controls.resume()
    return { status: 'running' }
  })

  app.post(
    '/admin/nodes/secret',
    describe('admin', 'Replace the secret by which nodes authenticate to each other', Rotated, {
      description: 'Responds when all nodes use the new secret. No request fails meanwhile.',
      body: Nothing,
    }),
    async () => {
      await controls.rotateNodeSecret()
      return { status: 'rotated' }
    },
  )

  // A turn is committed before the last byte of its response is sent, so there is nothing to wait for.
  app.post(
    '/admin/flush',
    describe('admin', 'Respond when every completed turn is committed', Flushed, { body: Nothing }),
    async () => ({ status: 'flushed' }),
  )

  app.post(
    '/admin/sweep',
    describe('admin', 'Delete the sessions whose time to live has expired', Swept, {
      description:
        'The proxy also does this every minute; if a large share of all sessions had expired before its start, their deletion is deferred for an hour.',
      body: SweepBody,
    }),
    async ({ body }) => {
      const { length: deleted } = await sessions.sweep(body.at_most)
      const backlog = sessions.deferredSweep
      return {
        status: backlog ? 'held' : 'swept',
        deleted,
        expired: backlog?.expired ?? 0,
        wait_s: backlog ? backlog.restMs / 1_000 : null,
      } as const
    },
  )

  app.get(
    '/admin/turns',
    {
      config: { scope: 'view' },
      ...describe('admin', 'List open turns, oldest first', OpenTurns, {
        querystring: OpenTurnsQuery,
      }),
    },
    async (request) => {
      const { limit } = request.query
      const own = listOpenTurns(sessions.listInFlightTurns(), limit, Date.now())
      return merge([own, ...((await others?.ask<Static<typeof OpenTurns>>(request)) ?? [])], limit)
    },
  )

  app.get(
    '/admin/weight_version',
    {
      config: { scope: 'view' },
      ...describe('admin', 'Read the announced weight version', WeightVersionBody, {}),
    },
    async () => ({ weight_version: weights.announced }),
  )

  app.post(
    '/admin/weight_version',
    describe('admin', 'Announce the weight version, for engines that do not report it', WeightVersionBody, {
      body: WeightVersionBody,
    }),
    async ({ body }) => {
      await controls.announce(body.weight_version)
      return { weight_version: weights.announced }
    },
  )
  done()
}

/** Merges the open turns of several nodes. */
function merge(parts: readonly Static<typeof OpenTurns>[], limit: number): Static<typeof OpenTurns> {
  const sum = (field: 'total' | 'sampled_tokens') => parts.reduce((all, part) => all + part[field], 0)
  const turns = parts.flatMap((part) => part.turns).sort((a, b) => a.started_at - b.started_at)
  return { turns: turns.slice(0, limit), total: sum('total'), sampled_tokens: sum('sampled_tokens') }
}

function listOpenTurns(
  turns: readonly InFlightTurn[],
  limit: number,
  nowMs: number,
): Static<typeof OpenTurns> {
  return {
    turns: turns.slice(0, limit).map(({ open, completion }) => ({
      session_id: open.sessionId,
      index: open.index,
      started_at: open.startedAtMs / 1_000,
      open_ms: Math.max(0, Math.round(nowMs - open.startedAtMs)),
      sampled_tokens: completion.tokenIds.length,
    })),
    total: turns.length,
    sampled_tokens: turns.reduce((sum, { completion }) => sum + completion.tokenIds.length, 0),
  }
}
