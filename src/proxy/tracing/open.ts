import { logEvent } from '../../base/log-events.ts'
import type { Logger } from '../../base/logger.ts'
import type { Tracing, TracingTarget } from './tracing.ts'

/** How many characters of what was said spans have at most, unless their values may be no longer than that. */
const CONTENT_CHARS = 32_768

/** @returns undefined where the environment names no endpoint: then no library of OpenTelemetry is loaded */
export async function openTracing(env: TracingEnv, logger: Logger): Promise<Tracing | undefined> {
  const settings = tracingSettings(env)
  if (settings.on) {
    const { OtlpTracing } = await import('./otlp-tracing.ts')
    const { contentChars } = settings
    if (contentChars !== undefined) logEvent(logger, 'span_content_enabled', { chars: contentChars })
    return new OtlpTracing(settings, logger)
  }
  if (settings.why !== undefined) logEvent(logger, 'tracing_disabled', { reason: settings.why })
  return undefined
}

type TracingEnv = Readonly<Record<string, string | undefined>>

type TracingSettings =
  | ({ on: true } & TracingTarget)
  /** @property why for the log, where somebody seems to want it */
  | { on: false; why?: string }

const PROTOCOL = 'http/protobuf'

/**
 * Whether, and how, spans are exported, by the variables that every OpenTelemetry SDK reads: on once an endpoint is
 * named. What else there is (headers, time-outs, compression, certificates, sampler, batches, resource attributes) the
 * SDK reads itself.
 * @see https://opentelemetry.io/docs/specs/otel/protocol/exporter/
 */
export function tracingSettings(env: TracingEnv): TracingSettings {
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
  const content = env.OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT?.trim().toLowerCase() ?? ''
  return { on: true, endpoint, contentChars: ON_SPANS.has(content) ? contentLimit(env) : undefined }
}

/**
 * Values of the variable by which instrumentations of OpenTelemetry are asked for what is said; others ask for nothing, or
 * for events, which there are none of here.
 * @see https://github.com/open-telemetry/opentelemetry-python-contrib/tree/main/util/opentelemetry-util-genai
 */
const ON_SPANS: ReadonlySet<string> = new Set(['true', 'span_only', 'span_and_event'])

/** The SDK cuts a value wherever the limit is: JSON that is to stay whole must be shorter, escapes and all. */
function contentLimit(env: TracingEnv): number {
  const limit = Number(env.OTEL_SPAN_ATTRIBUTE_VALUE_LENGTH_LIMIT || env.OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT)
  return limit > 0 ? Math.min(CONTENT_CHARS, Math.floor(limit / 4)) : CONTENT_CHARS
}

function off(why: string): TracingSettings {
  return { on: false, why: why }
}
