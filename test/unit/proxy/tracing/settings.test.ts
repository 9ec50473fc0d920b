import { registerHooks } from 'node:module'
import t from 'tap'
import { openTracing, readTracingSettings } from '../../../../src/proxy/tracing/open.ts'
import { createListingLogger } from '../../../helpers/listing-logger.ts'
import { silentLogger } from '../../../helpers/silent-logger.ts'

const ENDPOINT = { OTEL_EXPORTER_OTLP_ENDPOINT: 'http://127.0.0.1:4318' }

t.test('tracing is off until an endpoint is set', async (t) => {
  t.strictSame(readTracingSettings({}), { on: false })
  t.strictSame(readTracingSettings({ OTEL_EXPORTER_OTLP_ENDPOINT: '' }), { on: false })
  t.strictSame(readTracingSettings({ OTEL_SERVICE_NAME: 'x' }), { on: false })
  t.match(readTracingSettings(ENDPOINT), { on: true, endpoint: 'http://127.0.0.1:4318' })
  const own = { OTEL_EXPORTER_OTLP_TRACES_ENDPOINT: 'https://spans.test/v1/traces' }
  t.match(readTracingSettings({ ...ENDPOINT, ...own }), {
    on: true,
    endpoint: 'https://spans.test/v1/traces',
  })
})

t.test('it is off where the standard variables disable it', async (t) => {
  t.strictSame(readTracingSettings({ ...ENDPOINT, OTEL_SDK_DISABLED: 'true' }), { on: false })
  t.strictSame(readTracingSettings({ ...ENDPOINT, OTEL_TRACES_EXPORTER: 'none' }), { on: false })
  t.match(readTracingSettings({ ...ENDPOINT, OTEL_SDK_DISABLED: 'false' }), { on: true })
})

t.test('an unsupported setting disables it, with the reason', async (t) => {
  for (const [env, reason] of [
    [{ OTEL_EXPORTER_OTLP_PROTOCOL: 'grpc' }, /grpc, and only http\/protobuf is supported/],
    [{ OTEL_EXPORTER_OTLP_TRACES_PROTOCOL: 'http/json' }, /http\/json/],
    [{ OTEL_TRACES_EXPORTER: 'zipkin' }, /zipkin/],
    [{ OTEL_EXPORTER_OTLP_ENDPOINT: 'collector:4318' }, /is not a URL/],
  ] as const)
    t.match(readTracingSettings({ ...ENDPOINT, ...env }), { on: false, why: reason })
  const { logger, lines } = createListingLogger()
  t.equal(await openTracing({ ...ENDPOINT, OTEL_EXPORTER_OTLP_PROTOCOL: 'grpc' }, logger), undefined)
  t.match(lines, [{ event: 'tracing_disabled', reason: /grpc/ }])
})

t.test('no library of OpenTelemetry is loaded before tracing is on', async (t) => {
  const loaded: string[] = []
  const hooks = registerHooks({
    resolve(specifier, context, next) {
      if (specifier.startsWith('@opentelemetry/')) loaded.push(specifier)
      return next(specifier, context)
    },
  })
  t.teardown(() => hooks.deregister())
  t.equal(await openTracing({}, silentLogger), undefined)
  t.strictSame(loaded, [])
  const tracing = await openTracing(ENDPOINT, silentLogger)
  await tracing?.close()
  t.ok(loaded.includes('@opentelemetry/sdk-trace-base'), 'and then it is')
})

t.test('texts are in spans for operators that enable them, within the length limit of values', async (t) => {
  const CONTENT = 'OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT'
  const chars = (env: Record<string, string>) => {
    const settings = readTracingSettings({ ...ENDPOINT, ...env })
    return settings.on ? settings.contentChars : 'off'
  }
  for (const word of ['true', 'span_only', ' SPAN_AND_EVENT '])
    t.equal(chars({ [CONTENT]: word }), 32_768, word)
  for (const word of ['', 'false', 'no_content', 'event_only'])
    t.equal(chars({ [CONTENT]: word }), undefined, word)
  t.equal(chars({ [CONTENT]: 'true', OTEL_SPAN_ATTRIBUTE_VALUE_LENGTH_LIMIT: '4000' }), 1_000)
  t.equal(chars({ [CONTENT]: 'true', OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT: '999999' }), 32_768)
})
