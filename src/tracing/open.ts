import type { CallTracer } from '../canonical/spans.ts'
import type { Logger } from '../logger.ts'
import type { TurnStore } from '../store/turn-store.ts'
import { type Env, tracingSettings } from './settings.ts'

/** Writes spans of calls and exports them. */
export interface Tracing extends CallTracer {
  /** @returns the store to be used in place of `store`: what a turn came to, and its commit, is told there */
  watchStore(store: TurnStore): TurnStore
  /** Exports what is left, within some seconds; never throws. */
  close(): Promise<void>
}

/** @returns undefined where the environment names no endpoint: then no library of OpenTelemetry is loaded */
export async function openTracing(env: Env, logger: Logger): Promise<Tracing | undefined> {
  const settings = tracingSettings(env)
  if (settings.on) {
    const { OtlpTracing } = await import('./otlp-tracing.ts')
    return new OtlpTracing(settings.endpoint, logger)
  }
  if (settings.why !== undefined) logger.warn({}, settings.why)
  return undefined
}
