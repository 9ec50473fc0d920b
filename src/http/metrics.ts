import type { FastifyPluginCallback } from 'fastify'

import type { MetricsSource } from '../metrics/metrics.ts'

/** `GET /metrics`: Prometheus' text, or OpenMetrics for those who accept it. */
export const metricsRoute: FastifyPluginCallback<{ source: MetricsSource }> = (app, { source }, done) => {
  const schema = {
    tags: ['health'],
    summary: 'Metrics for Prometheus',
    produces: ['text/plain', 'application/openmetrics-text'],
  }
  app.get('/metrics', { schema }, async ({ headers }, reply) => {
    const { contentType, text } = await source.expose(headers.accept)
    return reply.header('content-type', contentType).send(text)
  })
  done()
}
