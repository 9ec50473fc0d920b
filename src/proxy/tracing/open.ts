import { logEvent } from '../../base/log-events.ts'
import type { Logger } from '../../base/logger.ts'
import type { Tracing, TracingTarget } from './tracing.ts'

/** The maximum length of an attribute with prompt or completion text, in characters; the SDK may have a lower limit. */
const CONTENT_CHARS = 32_768

/** Opens tracing. @returns undefined if the environment does not enable it; no OpenTelemetry library is loaded then */
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
 * Returns whether and where spans are exported, according to the standard variables of OpenTelemetry SDKs: an endpoint
 * enables the export. The SDK itself reads the other variables (headers, timeouts, compression, certificates, sampler,
 * batches, resource attributes).
 * @see https://opentelemetry.io/docs/specs/otel/protocol/exporter/
 */
export function readTracingSettings(env: TracingEnv): TracingSettings {
  const endpoint = env.OTEL_EXPORTER_OTLP_TRACES_ENDPOINT || env.OTEL_EXPORTER_OTLP_ENDPOINT
  const exporter = env.OTEL_TRACES_EXPORTER || 'otlp'
  const isDisabled = env.OTEL_SDK_DISABLED?.trim().toLowerCase() === 'true'
  if (!endpoint || isDisabled || exporter === 'none') return { on: false }
  if (exporter !== 'otlp')
    return createDisabledSettings(`OTEL_TRACES_EXPORTER is ${exporter}, and only otlp is supported`)
  const protocol = env.OTEL_EXPORTER_OTLP_TRACES_PROTOCOL || env.OTEL_EXPORTER_OTLP_PROTOCOL || PROTOCOL
  if (protocol !== PROTOCOL)
    return createDisabledSettings(
      `the protocol of OTLP is set to ${protocol}, and only ${PROTOCOL} is supported`,
    )
  if (!/^https?:$/.test(URL.parse(endpoint)?.protocol ?? ''))
    return createDisabledSettings('the OTLP endpoint is not a URL that begins with http:// or https://')
  const content = env.OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT?.trim().toLowerCase() ?? ''
  return { on: true, endpoint, contentChars: ON_SPANS.has(content) ? readContentLimit(env) : undefined }
}

/**
 * The values of `OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT` that enable prompt and completion text on spans.
 * Other values disable it or request events, which the proxy does not emit.
 * @see https://github.com/open-telemetry/opentelemetry-python-contrib/tree/main/util/opentelemetry-util-genai
 */
const ON_SPANS: ReadonlySet<string> = new Set(['true', 'span_only', 'span_and_event'])

/**
 * Returns the limit on captured text, in characters. The SDK truncates attribute values above its own limit, which
 * would make JSON invalid; a quarter of that limit leaves room for escapes.
 */
function readContentLimit(env: TracingEnv): number {
  const limit = Number(env.OTEL_SPAN_ATTRIBUTE_VALUE_LENGTH_LIMIT || env.OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT)
  return limit > 0 ? Math.min(CONTENT_CHARS, Math.floor(limit / 4)) : CONTENT_CHARS
}

function createDisabledSettings(reason: string): TracingSettings {
  return { on: false, why: reason }
}
