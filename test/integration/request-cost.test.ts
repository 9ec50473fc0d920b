/**
 * The cost of a streamed Messages request in counts, which do not depend on the machine: files, promises, asynchronous
 * hops, writes and acquired sessions. Each ceiling is today's figure; a change that lowers a count lowers its ceiling. The
 * store runs in this thread, so its writer's files are included.
 */
import { createHook, executionAsyncId } from 'node:async_hooks'
import { type ChannelListener, subscribe, unsubscribe } from 'node:diagnostics_channel'
import { Session } from 'node:inspector/promises'
import type { Socket } from 'node:net'
import { join } from 'node:path'
import { pathToFileURL } from 'node:url'
import t, { type Test } from 'tap'
import { LiveSessions } from '../../src/proxy/session/state/live-sessions.ts'
import { startProxy } from '../helpers/proxy.ts'
import { startAgentThread } from '../helpers/streamed-request.ts'

const CEILINGS = { files: 128, promises: 76, hops: 2, writes: 1, acquires: 1 }

const BATCHES = 12
const EVENTS_PER_BATCH = 8
const WARM_UP_REQUESTS = 3
const MEASURED_REQUESTS = 3
const MAX_REQUESTS = 50
const SRC = pathToFileURL(join(import.meta.dirname, '../../src/')).href

const agent = await startAgentThread(t)
const sockets = watchSockets()
const proxy = await startProxy(t, { engineUrls: [agent.engineUrl], engineKind: 'vllm' })
const request = {
  url: `${proxy.url}/session-1/v1/messages`,
  batches: BATCHES,
  eventsPerBatch: EVENTS_PER_BATCH,
}
for (let count = 0; count < WARM_UP_REQUESTS; count += 1) await agent.send(request)

t.test('a request runs code in few files', async (t) => {
  const inspector = new Session()
  inspector.connect()
  t.teardown(() => inspector.disconnect())
  await inspector.post('Profiler.enable')
  await inspector.post('Profiler.startPreciseCoverage', { callCount: true, detailed: false })
  const counts: string[][] = []
  for (let count = 0; count < MEASURED_REQUESTS; count += 1) {
    // Each call returns the functions that have run since the previous one.
    await inspector.post('Profiler.takePreciseCoverage')
    await agent.send(request)
    const { result } = await inspector.post('Profiler.takePreciseCoverage')
    counts.push(
      result
        .filter(({ functions }) => functions.some(({ ranges }) => ranges[0]!.count > 0))
        .map(({ url }) => url)
        .filter((url) => url.startsWith(SRC) && !url.startsWith(`${SRC}base/`)),
    )
  }
  // The smallest, because work in the background, such as a health check, may run during a request.
  const files = counts.reduce((fewest, list) => (list.length < fewest.length ? list : fewest))
  checkCeiling(t, 'files', files.length, files)
})

/**
 * A hop is a continuation on the path from the moment when a batch of events arrives from the engine's socket (`push` of
 * the proxy's socket) to the first write to the agent's socket (`_write` or `_writev`): a promise's reaction (an `await`
 * or `then`), a `queueMicrotask`, a `process.nextTick`, a `setImmediate` or a timer, those of Node and undici included.
 * async_hooks reports which continuation has scheduled another one (`executionAsyncId`), so the test walks
 * from the write back to the read. Batches do not overlap, because the engine waits until the agent has received one.
 */
t.test('a batch of events passes few asynchronous hops and is written at once', async (t) => {
  const hopTypes = ['PROMISE', 'TickObject', 'Microtask', 'Immediate', 'Timeout']
  const resources = new Map<number, { type: string; scheduledBy: number }>()
  const batches: { hops: string[] | undefined; writes: number }[] = []
  let readId: number | undefined
  const hook = createHook({
    init: (id, type) => resources.set(id, { type, scheduledBy: executionAsyncId() }),
  }).enable()
  const getHops = () => {
    const hops: string[] = []
    for (let id = executionAsyncId(); id !== readId; ) {
      const resource = resources.get(id)
      if (resource === undefined) return undefined
      if (hopTypes.includes(resource.type)) hops.push(resource.type)
      id = resource.scheduledBy
    }
    return hops
  }
  sockets.onRead = () => {
    readId = executionAsyncId()
    batches.push({ hops: undefined, writes: 0 })
  }
  sockets.onWrite = () => {
    const batch = batches.at(-1)!
    if (batch.writes === 0) batch.hops = getHops()
    batch.writes += 1
  }
  const text = await agent.send(request)
  hook.disable()
  sockets.onRead = () => {}
  sockets.onWrite = () => {}
  t.match(text, 'message_stop')
  // The first batches and the last one contain the head and the end of the response.
  const middle = batches.slice(3, -2)
  t.ok(middle.length > BATCHES / 2)
  const hopCounts = middle.map(({ hops }) => hops?.length ?? Number.NaN)
  t.ok(
    hopCounts.every((count) => count > 0),
    'the path of each batch is known',
    { middle },
  )
  checkCeiling(t, 'hops', Math.max(...hopCounts), middle)
  checkCeiling(t, 'writes', Math.max(...middle.map((batch) => batch.writes)))
})

t.test('a request creates few promises', async (t) => {
  const counts: number[] = []
  let promises = 0
  const hook = createHook({
    init: (_id, type) => {
      if (type === 'PROMISE') promises += 1
    },
  })
  // On a busy machine a request may take longer than its opening is delayed, and then needs three more promises.
  for (let count = 0; count < MAX_REQUESTS && Math.min(...counts) > CEILINGS.promises; count += 1) {
    promises = 0
    hook.enable()
    await agent.send(request)
    hook.disable()
    counts.push(promises)
  }
  t.ok(Math.min(...counts) > 0)
  checkCeiling(t, 'promises', Math.min(...counts), counts)
})

t.test('a request acquires its session few times', async (t) => {
  const { acquire } = LiveSessions.prototype
  let acquires = 0
  LiveSessions.prototype.acquire = function (...args) {
    acquires += 1
    return acquire.apply(this, args)
  }
  await agent.send(request)
  LiveSessions.prototype.acquire = acquire
  t.ok(acquires > 0)
  checkCeiling(t, 'acquires', acquires)
})

function checkCeiling(t: Test, name: keyof typeof CEILINGS, count: number, found?: unknown): void {
  t.ok(count <= CEILINGS[name], `${name}: ${count} of at most ${CEILINGS[name]}`, { found })
}

/** Observes the reads from the engine and the writes to the agent. The thread has no other sockets. */
function watchSockets() {
  const watch = { onRead: () => {}, onWrite: () => {} }
  const onClient: ChannelListener = (message) => {
    const { socket } = message as { socket: Socket }
    const { push } = socket
    socket.push = (bytes, ...rest) => {
      if (bytes !== null) watch.onRead()
      return push.call(socket, bytes, ...rest)
    }
  }
  const onServer: ChannelListener = (message) => {
    const { socket } = message as { socket: Socket }
    const { _write: write, _writev: writev } = socket
    socket._write = (...args) => {
      watch.onWrite()
      write.apply(socket, args)
    }
    socket._writev = (...args) => {
      watch.onWrite()
      writev!.apply(socket, args)
    }
  }
  subscribe('net.client.socket', onClient)
  subscribe('net.server.socket', onServer)
  t.teardown(() => {
    unsubscribe('net.client.socket', onClient)
    unsubscribe('net.server.socket', onServer)
  })
  return watch
}
