import { once } from 'node:events'
import { createServer, type IncomingMessage } from 'node:http'
import type { AddressInfo } from 'node:net'
import type { PassThrough } from 'node:stream'
import { buffer } from 'node:stream/consumers'
import t, { type Test } from 'tap'
import { RequestBody } from '../../../../../src/proxy/http/nodes/request-body.ts'
import { RawConnection } from '../../../../helpers/raw-connection.ts'

const MEMORY_BYTES = 8

/** Creates a request after its head has arrived, and the connection that sends its body. */
async function receive(t: Test, head: string) {
  const server = createServer()
  await once(server.listen(0, '127.0.0.1'), 'listening')
  t.teardown(() => server.close())
  const arrived = new Promise<IncomingMessage>((resolve) => server.on('request', resolve))
  const client = await RawConnection.open(`http://127.0.0.1:${(server.address() as AddressInfo).port}`)
  t.teardown(() => client.socket.destroy())
  client.send(`POST / HTTP/1.1\r\nhost: x\r\n${head}\r\n\r\n`)
  return { incoming: await arrived, client }
}

function createBody(incoming: IncomingMessage, limitBytes = 1024) {
  const charged: number[] = []
  const setMemory = (bytes: number) => {
    if (bytes > MEMORY_BYTES) throw new Error('too much')
    charged.push(bytes)
  }
  return { body: new RequestBody(incoming, { limitBytes, setMemory }), charged }
}

t.test('a body that was partly sent to a crashed node can be sent again completely', async (t) => {
  const { incoming, client } = await receive(t, 'content-length: 6')
  const { body, charged } = createBody(incoming)
  const stream = body.open('message-1') as PassThrough
  body.start()
  client.send('abc')
  await new Promise((resolve) => stream.once('readable', resolve))
  t.equal(String(stream.read()), 'abc')
  body.stop()
  t.equal(body.lostMessageId, undefined)
  const complete = body.complete(true)
  client.send('def')
  t.ok(await complete)
  t.equal(body.lostMessageId, 'message-1')
  t.equal(String(body.open('message-2')), 'abcdef')
  t.equal(body.lostMessageId, 'message-1')
  t.ok(charged.includes(6), 'the caller is charged for it')
  body.release()
  t.equal(charged.at(-1), 0, 'until the response begins')
})

t.test('a node that could not be reached has not consumed the body', async (t) => {
  const { incoming, client } = await receive(t, 'content-length: 3')
  const { body } = createBody(incoming)
  ;(body.open() as PassThrough).destroy()
  const stream = body.open() as PassThrough
  body.start()
  client.send('abc')
  t.equal(String(await buffer(stream)), 'abc')
})

for (const [what, limitBytes, size] of [
  ['longer than its limit', 4, 6],
  ['larger than the memory of its caller', 1024, 12],
] as const) {
  t.test(`a body ${what} is sent once`, async (t) => {
    const { incoming, client } = await receive(t, `content-length: ${size}`)
    const { body, charged } = createBody(incoming, limitBytes)
    const stream = body.open() as PassThrough
    body.start()
    client.send('x'.repeat(size))
    t.equal((await buffer(stream)).length, size)
    t.equal(charged.at(-1), 0)
    t.notOk(await body.complete(true))
    t.equal(body.lostMessageId, undefined)
  })
}

t.test('a body that its client truncated is not sent again', async (t) => {
  const { incoming, client } = await receive(t, 'transfer-encoding: chunked')
  const { body } = createBody(incoming)
  incoming.on('error', () => {})
  const stream = body.open() as PassThrough
  body.start()
  client.send('3\r\nabc\r\n')
  await new Promise((resolve) => stream.once('readable', resolve))
  body.stop()
  const complete = body.complete(true)
  client.socket.destroy()
  t.notOk(await complete)
})

t.test('a request without a body can be sent again', async (t) => {
  const { incoming } = await receive(t, 'x-none: 1')
  const { body } = createBody(incoming)
  t.equal(body.open(), null)
  body.start()
  body.stop()
  t.ok(await body.complete(true))
  t.equal(body.lostMessageId, 'unsigned', 'the node had no lease')
  t.equal(body.open(), null)
})

t.test('a body that this node has parsed can be sent to another one', async (t) => {
  const { incoming, client } = await receive(t, 'content-length: 3')
  const { body } = createBody(incoming)
  body.copy()
  client.send('abc')
  // Readers detach the buffers that they receive.
  structuredClone(0, { transfer: [(await buffer(incoming)).buffer as ArrayBuffer] })
  t.ok(await body.complete(false))
  t.equal(String(body.open()), 'abc')
  t.equal(body.lostMessageId, undefined)
})
