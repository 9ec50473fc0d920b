/** The route for requests between nodes. */
import type { FastifyPluginCallback } from 'fastify'
import Type, { type Static } from 'typebox'
import { describe, STRICT } from '../schemas/described.ts'
import { toTypedApp } from '../schemas/typed-app.ts'
import { readAnyBodyAsJson } from '../transport/json-body.ts'
import type { Deliveries } from './deliveries.ts'

/** The maximum number of reports in one request. */
export const MAX_REPORTS = 1_000
const BODY_LIMIT_BYTES = 256 * 1024

const DeliveryReport = Type.Object(
  {
    id: Type.String({
      maxLength: 64,
      description: 'The id of the signed message that forwarded the request',
    }),
    delivered: Type.Boolean({ description: 'Whether the client received the whole response' }),
  },
  STRICT,
)

export type DeliveryReport = Static<typeof DeliveryReport>

const DeliveryReports = Type.Object(
  { deliveries: Type.Array(DeliveryReport, { maxItems: MAX_REPORTS }) },
  STRICT,
)

interface NodeRoutesOptions {
  /** Undefined: the database has only this node, and no caller has the scope of these routes. */
  deliveries: Deliveries | undefined
}

export const nodeRoutes: FastifyPluginCallback<NodeRoutesOptions> = (plain, { deliveries }, done) => {
  const app = toTypedApp(plain)
  readAnyBodyAsJson(app)
  app.post(
    '/nodes/deliveries',
    {
      bodyLimit: BODY_LIMIT_BYTES,
      ...describe(
        'nodes',
        'Report whether forwarded responses were delivered; for other nodes only',
        Type.Object({ status: Type.Literal('noted') }),
        { body: DeliveryReports },
      ),
    },
    async ({ caller, body }) => {
      if (caller.is === 'node')
        for (const { id, delivered } of body.deliveries) deliveries?.acknowledge(caller.lease, id, delivered)
      return { status: 'noted' }
    },
  )
  done()
}
