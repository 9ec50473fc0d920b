import { registerHooks } from 'node:module'
import t from 'tap'
import { openTracing, tracingSettings } from '../../../src/proxy/tracing/open.ts'
import { silentLogger } from '../../helpers/silent-logger.ts'

const ENDPOINT = { OTEL_EXPORTER_OTLP_ENDPOINT: 'http://127.0.0.1:4318' }

t.test('tracing is off until an endpoint is named', async (t) => {
  t.strictSame(tracingSettings({}), { on: false })
  t.strictSame(tracingSettings({ OTEL_EXPORTER_OTLP_ENDPOINT: '' }), { on: false })
  t.strictSame(tracingSettings({ OTEL_SERVICE_NAME: 'x' }), { on: false })
  t.match(tracingSettings(ENDPOINT), { on: true, endpoint: 'http://127.0.0.1:4318' })
  const own = { OTEL_EXPORTER_OTLP_TRACES_ENDPOINT: 'https://spans.test/v1/traces' }
  t.match(tracingSettings({ ...ENDPOINT, ...own }), { on: true, endpoint: 'https://spans.test/v1/traces' })
})

t.test('it is off where the standard variables say so', async (t) => {
  t.strictSame(tracingSettings({ ...ENDPOINT, OTEL_SDK_DISABLED: 'true' }), { on: false })
  t.strictSame(tracingSettings({ ...ENDPOINT, OTEL_TRACES_EXPORTER: 'none' }), { on: false })
  t.match(tracingSettings({ ...ENDPOINT, OTEL_SDK_DISABLED: 'false' }), { on: true })
})

t.test('what cannot be done is off, and says why', async (t) => {
  for (const [env, why] of [
    [{ OTEL_EXPORTER_OTLP_PROTOCOL: 'grpc' }, /grpc, and only http\/protobuf is spoken/],
    [{ OTEL_EXPORTER_OTLP_TRACES_PROTOCOL: 'http/json' }, /http\/json/],
    [{ OTEL_TRACES_EXPORTER: 'zipkin' }, /zipkin/],
    [{ OTEL_EXPORTER_OTLP_ENDPOINT: 'collector:4318' }, /is no URL/],
  ] as const)
    t.match(tracingSettings({ ...ENDPOINT, ...env }), { on: false, why })
  const told: string[] = []
  const logger = { ...silentLogger, warn: (_fields: object, text: string) => told.push(text) }
  t.equal(await openTracing({ ...ENDPOINT, OTEL_EXPORTER_OTLP_PROTOCOL: 'grpc' }, logger), undefined)
  t.match(told, [/^No spans are exported: .*grpc/])
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
