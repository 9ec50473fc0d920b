/** One look at a running proxy: all that `top` knows of a moment. */
import Type, { type Static } from 'typebox'
import { OpenTurns } from '../../proxy/http/operator/admin.ts'
import { Workers } from '../../proxy/http/operator/workers/schemas.ts'
import type { OperatorClient } from '../proxy-client.ts'

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

/** What `/metrics` answers, as numbers. */

/** The values of some series of Prometheus' text format, added up. */
export class MetricSamples {
  readonly #lines: readonly string[]

  /** @param text https://prometheus.io/docs/instrumenting/exposition_formats/ */
  constructor(text: string) {
    this.#lines = text.split('\n').filter((line) => line !== '' && !line.startsWith('#'))
  }

  /** @param label `name="value"` that each series has to have */
  values(name: string, label = ''): number[] {
    return this.#lines
      .filter((line) => line.startsWith(`${name}{`) || line.startsWith(`${name} `))
      .filter((line) => line.includes(label))
      .map((line) => Number(line.slice(line.lastIndexOf(' ') + 1)))
  }

  /** 0 where there is none. */
  sum(name: string, label?: string): number {
    return this.values(name, label).reduce((sum, value) => sum + value, 0)
  }
}
