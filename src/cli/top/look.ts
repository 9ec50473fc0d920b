/** One look at a running proxy: all that `top` knows of a moment. */
import Type, { type Static } from 'typebox'
import { OpenTurns } from '../../proxy/http/operator/admin.ts'
import { Workers } from '../../proxy/http/operator/workers/schemas.ts'
import type { OperatorClient } from '../proxy-client.ts'
import { MetricSamples } from './metric-samples.ts'

/** A front has no more than the first two. */
const Health = Type.Object({
  status: Type.String(),
  mode: Type.String(),
  version: Type.Optional(Type.String()),
  paused_since: Type.Optional(Type.Union([Type.Number(), Type.Null()])),
})

/** As many as a large terminal shows. */
const MAX_OPEN_TURNS = 50

export interface Look {
  /** When the answers were here, in milliseconds since the epoch. */
  atMs: number
  health: Static<typeof Health>
  members: Static<typeof Workers>
  open: Static<typeof OpenTurns>
  metrics: MetricSamples
}

/** @throws ProxyError as {@link OperatorClient.call} */
export async function look(proxy: OperatorClient): Promise<Look> {
  const [health, members, open, metrics] = await Promise.all([
    proxy.health(Health),
    proxy.get('/admin/workers', Workers),
    proxy.get(`/admin/turns?limit=${MAX_OPEN_TURNS}`, OpenTurns),
    proxy.bytes('/metrics'),
  ])
  return { atMs: Date.now(), health, members, open, metrics: new MetricSamples(metrics.toString()) }
}
