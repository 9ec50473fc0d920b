import type { Logger } from '../../base/logger.ts'
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

/** Whether, and how, spans are exported, by the variables that every OpenTelemetry SDK reads. */

type Env = Readonly<Record<string, string | undefined>>

type TracingSettings =
  | { on: true; endpoint: string }
  /** @property why for the log, where somebody seems to want it */
  | { on: false; why?: string }

const PROTOCOL = 'http/protobuf'

/**
 * On once an endpoint is named. What else there is (headers, time-outs, compression, certificates, sampler, batches,
 * resource attributes) the SDK reads itself.
 * @see https://opentelemetry.io/docs/specs/otel/protocol/exporter/
 */
export function tracingSettings(env: Env): TracingSettings {
  const endpoint = env.OTEL_EXPORTER_OTLP_TRACES_ENDPOINT || env.OTEL_EXPORTER_OTLP_ENDPOINT
  const exporter = env.OTEL_TRACES_EXPORTER || 'otlp'
  const isDisabled = env.OTEL_SDK_DISABLED?.trim().toLowerCase() === 'true'
  if (!endpoint || isDisabled || exporter === 'none') return { on: false }
  if (exporter !== 'otlp') return off(`OTEL_TRACES_EXPORTER is ${exporter}, and only otlp is known`)
  const protocol = env.OTEL_EXPORTER_OTLP_TRACES_PROTOCOL || env.OTEL_EXPORTER_OTLP_PROTOCOL || PROTOCOL
  if (protocol !== PROTOCOL)
    return off(`the protocol of OTLP is set to ${protocol}, and only ${PROTOCOL} is spoken`)
  if (!/^https?:$/.test(URL.parse(endpoint)?.protocol ?? ''))
    return off('the endpoint of OTLP is no URL that begins with http:// or https://')
  return { on: true, endpoint }
}

function off(why: string): TracingSettings {
  return { on: false, why: `No spans are exported: ${why}` }
}
