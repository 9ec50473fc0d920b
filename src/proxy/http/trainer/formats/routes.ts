/** The read-only route that returns a session in a foreign format. */
import type { FastifyPluginCallback } from 'fastify'
import type { Trajectory } from '../../../session/trajectories/trajectories.ts'
import type { TurnReader } from '../../../store/port/turn-store.ts'
import { describe, describeMedia } from '../../schemas/described.ts'
import { toTypedApp } from '../../schemas/typed-app.ts'
import { NDJSON } from '../../transport/ndjson-reply.ts'
import { getSessionOrThrow } from '../sessions/get-session.ts'
import { createJsonStream } from '../sessions/json-stream.ts'
import { SessionParams } from '../sessions/schemas.ts'
import { exportSession } from './export-session.ts'
import { ExportLine, ExportQuery } from './schemas.ts'

interface FormatRoutesOptions {
  reader: TurnReader
  /** Called for each row that a trainer reads. */
  onRow?: (row: Trajectory) => void
}

export const formatRoutes: FastifyPluginCallback<FormatRoutesOptions> = (plain, { reader, onRow }, done) => {
  toTypedApp(plain).get(
    '/sessions/:sessionId/export',
    describe('sessions', 'Read a session in a foreign format', describeMedia(NDJSON, ExportLine), {
      description:
        'One line of JSON per row; for `atif` and `training_trace` one line with the whole document.',
      params: SessionParams,
      querystring: ExportQuery,
    }),
    async ({ params: { sessionId }, query }, reply) => {
      const session = await getSessionOrThrow(reader, sessionId)
      const lines = await exportSession(reader, session, query, onRow)
      return reply.type(NDJSON).send(createJsonStream(lines))
    },
  )
  done()
}
