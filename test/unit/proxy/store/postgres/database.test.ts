import { once } from 'node:events'
import { type AddressInfo, createServer, type Socket } from 'node:net'
import t, { type Test } from 'tap'
import { reconnect } from '../../../../../src/proxy/store/postgres/database.ts'
import { until } from '../../../../helpers/until.ts'

/** Creates a message of the protocol, https://www.postgresql.org/docs/current/protocol-message-formats.html. */
function createMessage(type: string, ...parts: (string | Buffer)[]): Buffer {
  const body = Buffer.concat(parts.map((part) => Buffer.from(part as string)))
  const head = Buffer.alloc(5, type)
  head.writeInt32BE(body.length + 4, 1)
  return Buffer.concat([head, body])
}

function toInt(value: number, bytes: number): Buffer {
  const buffer = Buffer.alloc(bytes)
  buffer.writeIntBE(value, 0, bytes)
  return buffer
}

const READY = createMessage('Z', 'I')
const TEXT_FIELD = [toInt(0, 4), toInt(0, 2), toInt(25, 4), toInt(-1, 2), toInt(-1, 4), toInt(0, 2)]

/** Returns the reply of a primary that has no memory left for `SHOW`. */
function reply(query: string): Buffer[] {
  if (query.startsWith('SHOW')) return [createMessage('E', 'SERROR\0C53200\0Mout of memory\0\0')]
  if (!query.includes('pg_is_in_recovery')) return [createMessage('C', 'SELECT 0\0')]
  const fields = ['is_standby', 'read_only'].flatMap((name) => [`${name}\0`, ...TEXT_FIELD])
  const row = createMessage('D', toInt(2, 2), toInt(0, 4), toInt(3, 4), 'off')
  return [createMessage('T', toInt(2, 2), ...fields), row, createMessage('C', 'SELECT 1\0')]
}

async function startServer(t: Test) {
  const sockets: Socket[] = []
  const server = createServer((socket) => {
    sockets.push(socket)
    socket.once('data', () => {
      socket.write(Buffer.concat([createMessage('R', toInt(0, 4)), READY]))
      socket.on('data', (bytes) => {
        if (bytes.toString('latin1', 0, 1) === 'X') socket.end()
        else socket.write(Buffer.concat([...reply(bytes.toString('utf8', 5)), READY]))
      })
    })
  })
  server.listen(0, '127.0.0.1')
  await once(server, 'listening')
  t.teardown(() => {
    for (const socket of sockets) socket.destroy()
    server.close()
  })
  const { port } = server.address() as AddressInfo
  return { sockets, url: `postgres://proxy@127.0.0.1:${port}/turns` }
}

t.test('each attempt to reconnect that fails closes its connection', async (t) => {
  const { sockets, url } = await startServer(t)
  await t.rejects(reconnect(url, 'power', 300), {
    code: 'store_failed',
    message: 'the database is unavailable: out of memory',
  })
  t.ok(sockets.length > 1, `${sockets.length} attempts`)
  await until(() => sockets.every(({ closed }) => closed))
})
