/** Admin routes of scheduling and weights: pause requests while weights change, and announce the weight version. */
import type { FastifyPluginCallback } from 'fastify'
import Type, { type Static } from 'typebox'
import type { LiveTurn } from '../../session/state/live-turn.ts'
import type { Sessions } from '../../session/state/sessions.ts'
import type { AnnouncedWeights } from '../../session/turn/announced-weights.ts'
import type { OtherNodes } from '../nodes/other-nodes.ts'
import { described, Nothing, nullable, STRICT } from '../schemas/described.ts'
import { typedApp } from '../schemas/typed-app.ts'
import { readAnyBodyAsJson } from '../transport/json-body.ts'
import type { Controls } from './controls.ts'

interface AdminOptions {
  controls: Controls
  /** Default: none. */
  others?: OtherNodes | undefined
  weights: AnnouncedWeights
  sessions: Pick<Sessions, 'sweep' | 'heldSweep' | 'openTurns'>
}

const Version = Type.Union([Type.String(), Type.Number()])
const WeightVersionBody = Type.Object({ weight_version: nullable(Version) }, STRICT)
const PauseQuery = Type.Object(
  {
    drain_timeout_s: Type.Number({
      minimum: 0,
      maximum: 3_600,
      default: 60,
      description: 'How long to wait for the calls that run; the pause holds whether they have ended or not',
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
      description:
        "The operator's word that up to so many sessions may go now, however large a share of all they are",
    }),
  },
  STRICT,
)
const Swept = Type.Object({
  status: Type.Enum(['swept', 'held'], {
    description: 'held: so many had run out before the start that these wait, or for a larger at_most',
  }),
  deleted: Type.Integer(),
  expired: Type.Integer({ description: 'Sessions that wait to be deleted' }),
  wait_s: Type.Union([Type.Number(), Type.Null()], {
    description: 'After so long they are deleted without a word; null: none waits',
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
      open_ms: Type.Integer({ description: 'For how long it has been open' }),
      sampled_tokens: Type.Integer({ description: 'What has come of its answer' }),
    }),
  ),
  total: Type.Integer({ description: 'How many turns are open' }),
  sampled_tokens: Type.Integer({ description: 'Of all that are open' }),
})

export const adminRoutes: FastifyPluginCallback<AdminOptions> = (plain, options, done) => {
  const { controls, weights, sessions, others } = options
  const app = typedApp(plain)
  readAnyBodyAsJson(app)

  app.post(
    '/admin/pause',
    described('admin', 'Let new calls wait, and wait until those that run have ended', Paused, {
      querystring: PauseQuery,
    }),
    async ({ query }) => {
      const inFlight = await controls.pause(query.drain_timeout_s * 1_000)
      return { status: 'paused', drained: inFlight === 0, in_flight: inFlight }
    },
  )

  app.post('/admin/resume', described('admin', 'Serve calls again', Resumed, {}), async () => {
    await controls.resume()
    return { status: 'running' }
  })

  app.post(
    '/admin/nodes/secret',
    described('admin', 'Replace the secret by which nodes authenticate to each other', Rotated, {
      description: 'Responds when all nodes use the new secret. No request fails meanwhile.',
      body: Nothing,
    }),
    async () => {
      await controls.rotateNodeSecret()
      return { status: 'rotated' }
    },
  )

  // A turn is committed before the last byte of its response is sent, so nothing remains to be written here.
  app.post(
    '/admin/flush',
    described('admin', 'Answers once every answered call is on record', Flushed, { body: Nothing }),
    async () => ({ status: 'flushed' }),
  )

  app.post(
    '/admin/sweep',
    described('admin', 'Delete the sessions whose time to live is over', Swept, {
      description:
        'The proxy does so every minute by itself; a large share of all that ran out before its start waits for an hour.',
      body: SweepBody,
    }),
    async ({ body }) => {
      const { length: deleted } = await sessions.sweep(body.at_most)
      const held = sessions.heldSweep
      return {
        status: held ? 'held' : 'swept',
        deleted,
        expired: held?.expired ?? 0,
        wait_s: held ? held.restMs / 1_000 : null,
      } as const
    },
  )

  app.get(
    '/admin/turns',
    {
      config: { scope: 'view' },
      ...described('admin', 'The turns that are open now, the oldest first', OpenTurns, {
        querystring: OpenTurnsQuery,
      }),
    },
    async (request) => {
      const { limit } = request.query
      const own = openTurns(sessions.openTurns(), limit, Date.now())
      return merged([own, ...((await others?.ask<Static<typeof OpenTurns>>(request)) ?? [])], limit)
    },
  )

  app.get(
    '/admin/weight_version',
    {
      config: { scope: 'view' },
      ...described('admin', 'The weight version that was announced', WeightVersionBody, {}),
    },
    async () => ({ weight_version: weights.announced }),
  )

  app.post(
    '/admin/weight_version',
    described('admin', 'Tell the weight version, for engines that do not', WeightVersionBody, {
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
function merged(parts: readonly Static<typeof OpenTurns>[], limit: number): Static<typeof OpenTurns> {
  const sum = (field: 'total' | 'sampled_tokens') => parts.reduce((all, part) => all + part[field], 0)
  const turns = parts.flatMap((part) => part.turns).sort((a, b) => a.started_at - b.started_at)
  return { turns: turns.slice(0, limit), total: sum('total'), sampled_tokens: sum('sampled_tokens') }
}

function openTurns(turns: readonly LiveTurn[], limit: number, nowMs: number): Static<typeof OpenTurns> {
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
