/**
 * Counts what one streamed request of Messages in chat mode passes through in the main thread. A change that lowers a
 * number lowers its ceiling here.
 */
import { createHook } from 'node:async_hooks'
import { Session } from 'node:inspector/promises'
import { connect } from 'node:net'
import { join } from 'node:path'
import t, { type Test } from 'tap'
import { startServer } from '../../src/main.ts'
import { loadConfig } from '../../src/proxy/config/load.ts'
import { SERVE } from '../../src/proxy/config/options/serve.ts'
import { LiveSessions } from '../../src/proxy/session/state/live-sessions.ts'
import { said, startChild } from '../helpers/children.ts'
import { silentLogger } from '../helpers/silent-logger.ts'

/** Files of src that run code for a request, without `src/base`. */
const MOST_FILES = 126
/** Promises and microtasks between the read of an event from the engine's socket and its write to the agent's. */
const MOST_HOPS = 2

/** Starts a proxy with its threads, and an engine in another process. */
async function setUp(t: Test) {
  const standIn = join(import.meta.dirname, '../bench/processes/engine-stand-in.ts')
  const engine = startChild(process.execPath, [standIn, '--tokens-per-second', '400'])
  t.teardown(() => engine.kill('SIGKILL'))
  const [, engineUrl] = await said(engine.stdout, /on (http:\S+)/)
  const config = {
    ...loadConfig(SERVE, {}, {}),
    port: 0,
    db: `${t.testdir()}/proxy.db`,
    engineUrls: [engineUrl!],
  }
  const server = await startServer({ ...config, engineKind: 'vllm' }, { logger: silentLogger })
  t.teardown(() => server.stop(0))
  const { port } = new URL(server.url)
  const socket = connect(Number(port), '127.0.0.1')
  t.teardown(() => socket.destroy())
  socket.setEncoding('utf8')
  /** Sends a request on a connection without promises, and calls `done` at the end of its response. */
  const send = (tokens: number, done: () => void) => {
    const messages = [{ role: 'user', content: 'Hello.' }]
    const body = JSON.stringify({ model: 'm', stream: true, max_tokens: tokens, messages })
    let text = ''
    const onData = (piece: string) => {
      text += piece
      if (!text.includes('event: message_stop') || !text.endsWith('0\r\n\r\n')) return
      socket.off('data', onData)
      done()
    }
    socket.on('data', onData)
    socket.write(
      'POST /s/v1/messages HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n' +
        `content-length: ${Buffer.byteLength(body)}\r\n\r\n${body}`,
    )
  }
  const request = (tokens: number) => new Promise<void>((resolve) => send(tokens, resolve))
  await request(5)
  return { request, send }
}

t.test('a request runs code in few files', async (t) => {
  const { request } = await setUp(t)
  const inspector = new Session()
  inspector.connect()
  t.teardown(() => inspector.disconnect())
  await inspector.post('Profiler.enable')
  await inspector.post('Profiler.startPreciseCoverage', { callCount: true, detailed: false })
  await request(5)
  const { result } = await inspector.post('Profiler.takePreciseCoverage')
  const files = result
    .filter(({ functions }) => functions.some(({ ranges }) => ranges.some(({ count }) => count > 0)))
    .flatMap(({ url }) => /\/src\/(?!base\/)(.*)$/.exec(url)?.[1] ?? [])
    .sort()
  t.comment(`${files.length} files: ${files.join(' ')}`)
  t.ok(files.length > 30, 'coverage is taken')
  t.ok(files.length <= MOST_FILES, `${files.length} files, at most ${MOST_FILES}`)
})

t.test('an event of the engine takes few asynchronous hops to the agent', async (t) => {
  const { send } = await setUp(t)
  let hops = 0
  const hook = createHook({
    init(_id, type) {
      if (type === 'PROMISE' || type === 'Microtask') hops += 1
    },
  })
  /** Returns the hops of a request. The test itself creates no promise meanwhile. */
  const count = (tokens: number) =>
    new Promise<number>((resolve) => {
      hook.enable()
      hops = 0
      send(tokens, () => {
        hook.disable()
        resolve(hops)
      })
    })
  await count(10)
  const [few, many] = [await count(50), await count(250)]
  const perEvent = (many - few) / 200
  t.comment(`${perEvent} hops for each event, ${few} for a request of 50`)
  t.ok(perEvent > 0, 'hops are counted')
  t.ok(perEvent <= MOST_HOPS, `${perEvent} hops, at most ${MOST_HOPS}`)
})

t.test('a request acquires its session once', async (t) => {
  const { request } = await setUp(t)
  const { use } = LiveSessions.prototype
  t.teardown(() => Object.assign(LiveSessions.prototype, { use }))
  let acquisitions = 0
  Object.assign(LiveSessions.prototype, {
    use(this: LiveSessions, sessionId: string) {
      acquisitions += 1
      return use.call(this, sessionId)
    },
  })
  await request(5)
  t.equal(acquisitions, 1)
})
