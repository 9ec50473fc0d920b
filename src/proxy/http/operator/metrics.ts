import type { FastifyPluginCallback } from 'fastify'
import Type from 'typebox'
import type { MetricsSource } from '../../metrics/proxy-metrics.ts'
import { ErrorReply } from '../schemas/described.ts'

/** The media types, between which the `Accept` header selects. */
const MEDIA = ['text/plain', 'application/openmetrics-text']

/** Serves `GET /metrics` in the Prometheus text format, or in OpenMetrics for clients that accept it. */
export const metricsRoute: FastifyPluginCallback<{ source: MetricsSource }> = (app, { source }, done) => {
  const schema = {
    tags: ['health'],
    summary: 'Metrics for Prometheus',
    response: {
      200: {
        description: 'The metrics',
        content: Object.fromEntries(MEDIA.map((media) => [media, { schema: Type.String() }])),
      },
      '4xx': ErrorReply,
    },
  }
  app.get('/metrics', { schema, serializerCompiler: () => JSON.stringify }, async ({ headers }, reply) => {
    const { contentType, text } = await source.expose(headers.accept)
    return reply.header('content-type', contentType).send(text)
  })
  done()
}
