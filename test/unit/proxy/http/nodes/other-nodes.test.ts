import { Readable } from 'node:stream'
import type { FastifyRequest } from 'fastify'
import t from 'tap'
import type { Forwarder } from '../../../../../src/proxy/http/nodes/forwarder.ts'
import { OtherNodes } from '../../../../../src/proxy/http/nodes/other-nodes.ts'
import type { NdjsonReply } from '../../../../../src/proxy/http/transport/ndjson-reply.ts'
import type { NodeCoordination } from '../../../../../src/proxy/store/port/node-coordination.ts'
import { until } from '../../../../helpers/until.ts'

t.test('the complete lines of another node are copied unchanged, except pings', async (t) => {
  const event = JSON.stringify({ type: 'turn', note: 'a\u2028b\u2029ü' })
  const body = Readable.from([Buffer.from(`{"type":"ping"}\n${event}\n{"type":"incompl`)])
  const coordination = {
    self: { id: 1 },
    proxies: [{ id: 1 }, { id: 2, url: 'http://other' }],
    getLossSignal: () => new AbortController().signal,
  } as unknown as NodeCoordination
  const forwarder = { sendGet: async () => ({ statusCode: 200, body }) } as unknown as Forwarder
  const sent: string[] = []
  const reply = { runWhenClosed() {}, runEvery() {}, sendLine: (line: string) => sent.push(line) }
  const request = { headers: {} } as FastifyRequest
  new OtherNodes(coordination, forwarder).follow(request, reply as unknown as NdjsonReply)
  await until(() => body.destroyed)
  t.strictSame(sent, [event])
})
