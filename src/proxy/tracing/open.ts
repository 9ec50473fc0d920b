import type { Logger } from '../../base/logger.ts'
import { type Env, tracingSettings } from './settings.ts'
import type { Tracing } from './tracing.ts'

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
