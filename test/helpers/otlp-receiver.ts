/** A receiver of OTLP over HTTP, which decodes exports with OpenTelemetry's own definition of the format. */
import { once } from 'node:events'
import { createServer, type IncomingHttpHeaders } from 'node:http'
import { createRequire } from 'node:module'
import type { AddressInfo } from 'node:net'
import { buffer } from 'node:stream/consumers'
import type { Test } from 'tap'

type Value = string | number | boolean | Value[] | undefined

export interface ReceivedSpan {
  name: string
  /** The kind as the format names it: `SERVER`, `CLIENT`, `INTERNAL`. */
  kind: string
  traceId: string
  spanId: string
  /** The parent's span id; empty: none. */
  parentSpanId: string
  startMs: number
  endMs: number
  isError: boolean
  attributes: Record<string, Value>
  resource: Record<string, Value>
}

export interface OtlpReceiver {
  url: string
  spans: ReceivedSpan[]
  /** The headers of each export. */
  headers: IncomingHttpHeaders[]
  /** Returns all exports as text, to check for what they must not contain. */
  text(): string
  /** Returns the number of exports without a response. */
  waiting(): number
}

// Generated code without types.
// biome-ignore lint/suspicious/noExplicitAny: a message whose fields the format defines
type Message = any
const { opentelemetry } = createRequire(import.meta.url)(
  '@opentelemetry/otlp-proto-exporter-base/build/src/generated/root.js',
) as { opentelemetry: { proto: Message } }
const { ExportTraceServiceRequest } = opentelemetry.proto.collector.trace.v1
const { Span, Status } = opentelemetry.proto.trace.v1

/**
 * Starts the receiver.
 * @param responds false: it accepts exports and never responds
 */
export async function startOtlpReceiver(t: Test, responds = true): Promise<OtlpReceiver> {
  const spans: ReceivedSpan[] = []
  const headers: IncomingHttpHeaders[] = []
  const bodies: Buffer[] = []
  let waiting = 0
  const server = createServer(async (request, response) => {
    waiting += 1
    const body = await buffer(request)
    headers.push(request.headers)
    bodies.push(body)
    spans.push(...getSpans(ExportTraceServiceRequest.decode(body)))
    if (!responds) return
    waiting -= 1
    response.writeHead(request.url === '/v1/traces' ? 200 : 404, { 'content-type': 'application/x-protobuf' })
    response.end()
  })
  server.listen(0, '127.0.0.1')
  await once(server, 'listening')
  t.teardown(() => {
    server.closeAllConnections()
    server.close()
  })
  const { port } = server.address() as AddressInfo
  const text = () => Buffer.concat(bodies).toString('latin1')
  return { url: `http://127.0.0.1:${port}`, spans, headers, text, waiting: () => waiting }
}

function getSpans({ resourceSpans }: Message): ReceivedSpan[] {
  return resourceSpans.flatMap(({ resource, scopeSpans }: Message) =>
    scopeSpans.flatMap((scope: Message) =>
      scope.spans.map((span: Message) => ({
        name: span.name,
        kind: Span.SpanKind[span.kind].replace('SPAN_KIND_', ''),
        traceId: hex(span.traceId),
        spanId: hex(span.spanId),
        parentSpanId: hex(span.parentSpanId),
        startMs: Number(span.startTimeUnixNano) / 1e6,
        endMs: Number(span.endTimeUnixNano) / 1e6,
        isError: span.status?.code === Status.StatusCode.STATUS_CODE_ERROR,
        attributes: getAttributes(span.attributes),
        resource: getAttributes(resource.attributes),
      })),
    ),
  )
}

const hex = (bytes: Uint8Array | null) => Buffer.from(bytes ?? []).toString('hex')

function getAttributes(pairs: Message[]): Record<string, Value> {
  return Object.fromEntries(pairs.map(({ key, value }) => [key, readValue(value)]))
}

function readValue(value: Message): Value {
  if (value.arrayValue) return value.arrayValue.values.map(readValue)
  if (value.intValue !== undefined && value.intValue !== null) return Number(value.intValue)
  return value.stringValue ?? value.doubleValue ?? value.boolValue
}
