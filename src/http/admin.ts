/** Admin routes of scheduling and weights: hold calls while weights change, and tell which weights these are. */
import type { TypeBoxTypeProvider } from '@fastify/type-provider-typebox'
import type { FastifyPluginCallback } from 'fastify'
import Type from 'typebox'
import type { Backend } from '../inference/backend.ts'
import { type Clock, systemClock } from '../inference/clock.ts'
import type { Activity } from '../session/activity.ts'
import type { ToldWeights } from '../session/told-weights.ts'
import { readAnyBodyAsJson } from './json-body.ts'
import { validatorCompiler } from './validate.ts'

export interface AdminOptions {
  backend: Backend
  weights: ToldWeights
  activity: Activity
  clock?: Clock
}

const STRICT = { additionalProperties: false }
const Version = Type.Union([Type.String(), Type.Number()])
const WeightVersionBody = Type.Object({ weight_version: Type.Union([Version, Type.Null()]) }, STRICT)
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
const NoBody = Type.Object({}, STRICT)
const DRAIN_POLL_MS = 20

export const adminRoutes: FastifyPluginCallback<AdminOptions> = (plain, options, done) => {
  const { backend, weights, activity, clock = systemClock } = options
  const app = plain.withTypeProvider<TypeBoxTypeProvider>()
  app.setValidatorCompiler(validatorCompiler)
  readAnyBodyAsJson(app)

  app.post(
    '/admin/pause',
    {
      schema: {
        ...docs('Let new calls wait, and wait until those that run have ended'),
        querystring: PauseQuery,
      },
    },
    async ({ query }) => {
      backend.pause()
      activity.tell({ type: 'paused' })
      const inFlight = await drained(backend, clock, query.drain_timeout_s * 1_000)
      return { status: 'paused', drained: inFlight === 0, in_flight: inFlight }
    },
  )

  app.post('/admin/resume', { schema: docs('Serve calls again') }, async () => {
    await backend.resume()
    activity.tell({ type: 'resumed' })
    return { status: 'running' }
  })

  // A turn is on disk before the last byte of its answer leaves, so that nothing is ever left to be written.
  app.post(
    '/admin/flush',
    { schema: { ...docs('Answers once every answered call is on record'), body: NoBody } },
    async () => ({ status: 'flushed' }),
  )

  app.get(
    '/admin/weight_version',
    { config: { scope: 'view' }, schema: docs('The weight version that was told') },
    async () => ({ weight_version: weights.told }),
  )

  app.post(
    '/admin/weight_version',
    { schema: { ...docs('Tell the weight version, for engines that do not'), body: WeightVersionBody } },
    async ({ body }) => {
      weights.told = body.weight_version
      // What an engine said before must not stand against this.
      await backend.refresh()
      return { weight_version: weights.told }
    },
  )
  done()
}

function docs(summary: string) {
  return { tags: ['admin'], summary }
}

/** @returns how many calls still run when all have ended or the time is up */
async function drained(backend: Backend, clock: Clock, timeoutMs: number): Promise<number> {
  const endMs = clock.nowMs() + timeoutMs
  for (;;) {
    const inFlight = backend.status().members.reduce((sum, member) => sum + member.inFlight, 0)
    if (inFlight === 0 || clock.nowMs() >= endMs) return inFlight
    await new Promise<void>((resolve) => clock.after(DRAIN_POLL_MS, resolve))
  }
}
