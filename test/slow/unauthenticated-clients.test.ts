/** Unauthenticated clients cannot occupy connections, fill memory or disk, or block others. */
import { once } from 'node:events'
import t from 'tap'
import WebSocket from 'ws'
import { LIMITS } from '../../src/proxy/http/transport/web-server.ts'
import { HANDSHAKE_LIMITS } from '../../src/proxy/http/worker/worker-socket.ts'
import { KEYS } from '../helpers/keys.ts'
import { createListingLogger } from '../helpers/listing-logger.ts'
import { startProxy } from '../helpers/proxy.ts'
import { RawConnection } from '../helpers/raw-connection.ts'
import { RawWorker } from '../helpers/raw-worker.ts'
import { startRelayProxy, untilWorkers } from '../helpers/relay-rig.ts'
import { startSessionsApi } from '../helpers/sessions-api.ts'
import { watchStalls } from '../helpers/stall-watch.ts'

const POST = 'POST /s/v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n'

t.test('headers that are too long are rejected, and the connection ends', async (t) => {
  const { url } = await startProxy(t, KEYS)
  const connection = await RawConnection.open(url)
  connection.send(`GET /health HTTP/1.1\r\nHost: localhost\r\nX: ${'x'.repeat(LIMITS.headerBytes)}\r\n\r\n`)
  const response = await connection.closed
  t.match(response, /^HTTP\/1.1 431 /)
  const body = JSON.parse(response.slice(response.indexOf('\r\n\r\n')))
  t.match(body, { type: 'error', error: { type: 'invalid_request_error', code: 'headers_too_large' } })
  t.match(body.error.message, /too large/, 'in the form that clients of all dialects read')
})

t.test('silence, endless headers and endless bodies are cut off', { timeout: 60_000 }, async (t) => {
  const { url } = await startProxy(t, KEYS)
  const silent = await RawConnection.open(url)
  const slow = (await RawConnection.open(url)).send('GET /health HTTP/1.1\r\nHost: local')
  const endless = (await RawConnection.open(url)).send(`${POST}Content-Length: 1000000\r\n\r\n{"messages"`)
  const sending = setInterval(() => endless.send('x'), 100)
  t.teardown(() => clearInterval(sending))
  t.match(await endless.closed, /^HTTP\/1.1 401 /, 'the error comes first')
  t.match(await silent.closed, /^HTTP\/1.1 408 /)
  t.match(await slow.closed, /^HTTP\/1.1 408 /)
})

t.test('only a little of a rejected body is read', { timeout: 60_000 }, async (t) => {
  const { url } = await startProxy(t, KEYS)
  const connection = await RawConnection.open(url)
  connection.send(`${POST}Transfer-Encoding: chunked\r\n\r\n`)
  const chunk = Buffer.concat([Buffer.from('10000\r\n'), Buffer.alloc(65_536, 'x'), Buffer.from('\r\n')])
  const { socket } = connection
  let sent = 0
  while (!socket.destroyed) {
    sent += chunk.length
    if (socket.write(chunk)) continue
    await Promise.race([new Promise((resolve) => socket.once('drain', resolve)), connection.closed])
  }
  t.match(connection.received, /^HTTP\/1.1 401 /)
  t.ok(sent < 32 * 1024 * 1024, `${sent} bytes: the kernel's buffers, and a little`)
})

t.test(
  'endless bodies share a budget, and the largest of the heaviest sender is rejected',
  { timeout: 60_000 },
  async (t) => {
    const { url } = await startSessionsApi(
      t,
      undefined,
      {},
      { bodyLimitBytes: 1_000_000, limits: { arrivingBytes: 0 } },
    )
    const send = async (session: string, bytes: number) => {
      const connection = await RawConnection.open(url)
      connection.send(`${POST.replace('/s/', `/${session}/`)}Transfer-Encoding: chunked\r\n\r\n`)
      connection.send(`${bytes.toString(16)}\r\n${'x'.repeat(bytes)}\r\n`)
      return connection
    }
    const small = await send('greedy', 500_000)
    const large = await send('greedy', 600_000)
    const honest = await send('honest', 950_000)
    await large.until('HTTP/1.1 503')
    await large.until('retry-after: 1')
    await large.until('"code":"queue_full"')
    for (const { received, socket } of [small, honest]) {
      t.equal(received, '')
      t.notOk(socket.destroyed)
    }
    t.equal((await fetch(`${url}/health`)).status, 200)
    for (const connection of [small, honest]) {
      connection.send('0\r\n\r\n')
      await connection.until('HTTP/1.1 400')
    }
  },
)

t.test(
  'endless bodies of requests without a body are cut off, and nothing else',
  { timeout: 60_000 },
  async (t) => {
    const { url } = await startSessionsApi(
      t,
      undefined,
      {},
      { bodyLimitBytes: 1_000_000, limits: { arrivingBytes: 0 } },
    )
    const open: RawConnection[] = []
    for (let count = 0; count < 3; count += 1) {
      const connection = await RawConnection.open(url)
      connection.send('GET /s/v1/models HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n')
      connection.send(`${(900_000).toString(16)}\r\n${'x'.repeat(900_000)}\r\n`)
      open.push(connection)
    }
    t.teardown(() => open.forEach(({ socket }) => void socket.destroy()))
    await Promise.race(open.map(({ closed }) => closed))
    t.equal((await fetch(`${url}/health`)).status, 200)
  },
)

t.test('a body that ends soon keeps its connection usable', async (t) => {
  const { url } = await startProxy(t, KEYS)
  const connection = await RawConnection.open(url)
  connection.send(`${POST}Content-Length: 200000\r\n\r\n${'x'.repeat(200_000)}`)
  await connection.until('401')
  connection.received = ''
  connection.send('GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n')
  await connection.until('"status":"ok"')
  connection.socket.destroy()
})

t.test('many silent connections evict each other, never an agent', { timeout: 120_000 }, async (t) => {
  const proxy = await startProxy(t, KEYS)
  const { agent_key: key } = await proxy.post('/sessions/s')
  const agent = await RawConnection.open(proxy.url)
  const models = `GET /s/v1/models HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer ${key}\r\n\r\n`
  await agent.send(models).until('"object":"list"')
  const first = await RawConnection.open(proxy.url)
  const rest: RawConnection[] = []
  t.teardown(() => rest.forEach(({ socket }) => void socket.destroy()))
  for (let count = 0; count < LIMITS.unauthenticatedPerAddress; count += 1)
    rest.push(await RawConnection.open(proxy.url))
  await first.closed
  t.equal(rest.filter(({ socket }) => socket.destroyed).length, 0, 'the newest stay')
  agent.received = ''
  await agent.send(models).until('"object":"list"')
  t.equal((await proxy.get('/health')).status, 'ok')
  agent.socket.destroy()
})

t.test('a socket that sends too much, or too often, before its hello is closed', async (t) => {
  const proxy = await startRelayProxy(t)
  const open = async () => {
    const { socket } = new RawWorker(`${proxy.url.replace('http', 'ws')}/ws/worker`)
    await once(socket, 'open')
    return { socket, closed: once(socket, 'close') }
  }
  const large = await open()
  large.socket.send(
    JSON.stringify({ type: 'worker_hello', worker_id: 'x'.repeat(2 * HANDSHAKE_LIMITS.bytes) }),
  )
  t.same((await large.closed)[0], 1006)
  const endless = await open()
  const sending = setInterval(() => endless.socket.send('x'.repeat(100_000), { fin: false }), 5)
  await endless.closed.finally(() => clearInterval(sending))
  const pinging = await open()
  for (let count = 0; count <= HANDSHAKE_LIMITS.frames; count += 1) pinging.socket.ping()
  t.same((await pinging.closed)[0], 1006)
  t.equal((await proxy.get('/health')).connected_workers, 0)
})

t.test('a worker may send anything after its hello', async (t) => {
  const proxy = await startRelayProxy(t, KEYS)
  const url = `${proxy.url.replace('http', `ws`)}/ws/worker`.replace('//', `//:${KEYS.workerKeys[0]}@`)
  const worker = await RawWorker.hello(url)
  await worker.next('worker_hello_ack')
  for (let count = 0; count < 2 * HANDSHAKE_LIMITS.frames; count += 1) worker.socket.ping()
  worker.send({ type: 'unknown', text: 'x'.repeat(2 * HANDSHAKE_LIMITS.bytes) })
  worker.send({ type: 'ping' })
  await worker.next('pong')
  await untilWorkers(proxy, 'w')
  worker.socket.terminate()
})

t.test(
  'a socket with a bad hello is removed soon, even if it does not respond to the close',
  { timeout: 30_000 },
  async (t) => {
    const proxy = await startRelayProxy(t)
    const connection = await RawConnection.open(proxy.url)
    connection.send(
      'GET /ws/worker HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n' +
        'Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n',
    )
    await connection.until('101')
    // A text frame of one letter, masked with zeros.
    connection.send(Buffer.from([0x81, 0x81, 0, 0, 0, 0, 0x78]))
    await connection.closed
  },
)

t.test('an upgrade to another protocol or path is an ordinary request', async (t) => {
  const proxy = await startProxy(t)
  for (const [line, upgrade] of [
    ['GET /health', 'websocket'],
    ['GET /health', 'h2c'],
    ['POST /sessions', 'websocket'],
  ]) {
    const connection = await RawConnection.open(proxy.url)
    connection.send(
      `${line} HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: ${upgrade}\r\nContent-Length: 2\r\n\r\n{}`,
    )
    await connection.until('HTTP/1.1 200')
    connection.socket.destroy()
  }
})

t.test('unauthenticated clients get one log line per interval, not one each', async (t) => {
  const { logger, lines } = createListingLogger()
  const { url } = await startProxy(t, KEYS, logger)
  await Promise.all(
    Array.from({ length: 200 }, () => fetch(`${url}/sessions`).then((response) => response.text())),
  )
  const rejections = lines.filter(({ event }) => event === 'request_unauthenticated')
  t.ok(rejections.length > 0 && rejections.length < 20, `${rejections.length} lines`)
  t.match(rejections[0], { code: 'unauthorized', address: '127.0.0.1', rejected: 1 })
  t.notOk(lines.some((line) => 'request_id' in line))
})

t.test('pages of other origins reach nothing of a proxy without keys', async (t) => {
  const proxy = await startProxy(t)
  const { host } = new URL(proxy.url)
  const status = async (headers: Record<string, string>, line = 'POST /sessions/s') => {
    const connection = await RawConnection.open(proxy.url)
    const lines = Object.entries({ Host: host, 'Content-Length': '0', ...headers }).map((pair) =>
      pair.join(': '),
    )
    connection.send([`${line} HTTP/1.1`, ...lines, '', ''].join('\r\n'))
    await connection.until('\r\n\r\n')
    connection.socket.destroy()
    return Number(connection.received.split(' ')[1])
  }
  t.equal(await status({}), 200)
  t.equal(await status({ Origin: `http://${host}` }), 200, 'its own origin')
  t.equal(await status({ Origin: 'https://evil.example' }), 403)
  t.equal(await status({ Origin: 'null' }), 403)
  t.equal(await status({ Origin: `http://${host}` }, 'OPTIONS /sessions'), 404, 'no CORS')
  // DNS rebinding: a name of the page's domain that resolves to this host.
  t.equal(await status({ Host: 'evil.example:8080', Origin: 'http://evil.example:8080' }), 403)
  t.equal(await status({ Host: 'evil.example' }, 'GET /sessions'), 403)
  for (const name of [
    'localhost',
    'llm-proxy',
    '[::1]:80',
    'host.docker.internal:8080',
    'a.localhost',
    '127.1.1.1',
  ]) {
    t.equal(await status({ Host: name }), 200, name)
  }
})

t.test('the worker socket is closed to pages, with or without a key', async (t) => {
  const open = await startRelayProxy(t)
  const closed = await startRelayProxy(t, { ...KEYS, db: 'memory' })
  for (const { url } of [open, closed]) {
    const headers = { authorization: `Bearer ${KEYS.workerKeys[0]}` }
    const status = async (origin: string) => {
      const socket = new WebSocket(`${url.replace('http', 'ws')}/ws/worker`, { origin, headers })
      socket.on('error', () => {})
      const response = await new Promise<number>((resolve) => {
        socket.on('unexpected-response', (_request, { statusCode = 0 }) => resolve(statusCode))
        socket.on('open', () => resolve(101))
      })
      socket.terminate()
      return response
    }
    t.equal(await status('https://evil.example'), 403)
    t.equal(await status(url), 101, "libraries that send the server's own origin")
  }
})

t.test('no first frame of a worker blocks the proxy', async (t) => {
  const proxy = await startRelayProxy(t)
  const size = HANDSHAKE_LIMITS.bytes - 1_000
  const frames = ['\\"', '"', '[', '{"a":', '{"a":NaN,'].map((part) => part.repeat(size / part.length))
  const stalls = await watchStalls(t)
  for (const frame of frames)
    await stalls.withoutStall(async () => {
      const worker = new RawWorker(`${proxy.url.replace('http', 'ws')}/ws/worker`)
      await once(worker.socket, 'open')
      worker.send(frame)
      t.equal(await worker.closed, 4000)
    })
})
