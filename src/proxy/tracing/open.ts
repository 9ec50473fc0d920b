import { logEvent } from '../../base/log-events.ts'
import type { Logger } from '../../base/logger.ts'
import type { Tracing, TracingTarget } from './tracing.ts'

/** Longest prompt or completion text of a span, in characters, unless the SDK's limit of attribute values is lower. */
const CONTENT_CHARS = 32_768

/** Opens tracing. @returns undefined if the environment names no endpoint; no OpenTelemetry library is loaded then */
export async function openTracing(env: TracingEnv, logger: Logger): Promise<Tracing | undefined> {
  const settings = readTracingSettings(env)
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
  /** @property why reason for the log, if the environment appears to request tracing */
  | { on: false; why?: string }

const PROTOCOL = 'http/protobuf'

/**
 * Returns whether and how spans are exported, by the variables that every OpenTelemetry SDK reads: enabled once an
 * endpoint is set. The SDK itself reads the other variables (headers, timeouts, compression, certificates, sampler,
 * batches, resource attributes).
 * @see https://opentelemetry.io/docs/specs/otel/protocol/exporter/
 */
export function readTracingSettings(env: TracingEnv): TracingSettings {
  const endpoint = env.OTEL_EXPORTER_OTLP_TRACES_ENDPOINT || env.OTEL_EXPORTER_OTLP_ENDPOINT
  const exporter = env.OTEL_TRACES_EXPORTER || 'otlp'
  const isDisabled = env.OTEL_SDK_DISABLED?.trim().toLowerCase() === 'true'
  if (!endpoint || isDisabled || exporter === 'none') return { on: false }
  if (exporter !== 'otlp')
    return createDisabledSettings(`OTEL_TRACES_EXPORTER is ${exporter}, and only otlp is known`)
  const protocol = env.OTEL_EXPORTER_OTLP_TRACES_PROTOCOL || env.OTEL_EXPORTER_OTLP_PROTOCOL || PROTOCOL
  if (protocol !== PROTOCOL)
    return createDisabledSettings(
      `the protocol of OTLP is set to ${protocol}, and only ${PROTOCOL} is spoken`,
    )
  if (!/^https?:$/.test(URL.parse(endpoint)?.protocol ?? ''))
    return createDisabledSettings('the endpoint of OTLP is no URL that begins with http:// or https://')
  const content = env.OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT?.trim().toLowerCase() ?? ''
  return { on: true, endpoint, contentChars: ON_SPANS.has(content) ? readContentLimit(env) : undefined }
}

/**
 * Values of the variable that enable prompt and completion text on spans in OpenTelemetry instrumentations. Its other
 * values disable it or request events, which the proxy does not emit.
 * @see https://github.com/open-telemetry/opentelemetry-python-contrib/tree/main/util/opentelemetry-util-genai
 */
const ON_SPANS: ReadonlySet<string> = new Set(['true', 'span_only', 'span_and_event'])

/**
 * Returns the limit on the captured text in characters. The SDK truncates a longer attribute value, so JSON must be
 * shorter than the SDK's limit, escapes included, to stay valid.
 */
function readContentLimit(env: TracingEnv): number {
  const limit = Number(env.OTEL_SPAN_ATTRIBUTE_VALUE_LENGTH_LIMIT || env.OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT)
  return limit > 0 ? Math.min(CONTENT_CHARS, Math.floor(limit / 4)) : CONTENT_CHARS
}

function createDisabledSettings(reason: string): TracingSettings {
  return { on: false, why: reason }
}
