/** A worker that gets one DNS name for all nodes connects to each address of it, and follows its changes. */
import { once } from 'node:events'
import t, { type Test } from 'tap'
import { InferenceWorkerClient } from '../../src/worker/inference-worker-client.ts'
import { CountingBackend, countedText } from '../helpers/counting-backend.ts'
import { freePort } from '../helpers/free-port.ts'
import {
  chatRequest,
  getText,
  type RelayServer,
  readEvents,
  startRelayServer,
} from '../helpers/relay-server.ts'
import { silentLogger } from '../helpers/silent-logger.ts'
import { until } from '../helpers/until.ts'

/** Starts nodes with one port at separate addresses, behind a name for the addresses that a test selects. */
async function startNodes(t: Test, count: number) {
  const port = await freePort()
  const hosts = Array.from({ length: count }, (_, i) => `127.0.0.${i + 1}`)
  const start = async (host: string): Promise<RelayServer> => {
    const server = await startRelayServer({ waitMs: 0, graceMs: 200 }, port, host)
    t.teardown(() => server.close())
    return server
  }
  const nodes = await Promise.all(hosts.map(start))
  return { port, hosts, nodes, start }
}

function startWorker(
  t: Test,
  port: number,
  addresses: () => readonly string[],
  backend = new CountingBackend(),
) {
  const lookups: string[] = []
  const worker = new InferenceWorkerClient({
    proxyUrls: [`dns+ws://nodes.example:${port}`],
    workerId: 'w',
    backend,
    maxConcurrency: 4,
    logger: silentLogger,
    random: () => 0,
    lookupIntervalMs: 20,
    resolve: async (host) => {
      lookups.push(host)
      return addresses()
    },
  })
  t.teardown(() => worker.stop(AbortSignal.abort()))
  worker.start()
  return { worker, lookups }
}

const hasWorker = ({ backend }: RelayServer) => backend.list().length === 1

t.test('a worker connects to every address of a name, and serves requests of each', async (t) => {
  const { port, hosts, nodes } = await startNodes(t, 3)
  const { lookups } = startWorker(t, port, () => hosts, new CountingBackend({ chunks: 3 }))
  await until(() => nodes.every(hasWorker))
  t.equal(lookups[0], 'nodes.example')
  for (const { backend } of nodes)
    t.equal(getText(await readEvents(backend, chatRequest('count'))), countedText(3))
})

t.test('a worker connects to an added node, and leaves a removed one after its requests', async (t) => {
  const { port, hosts, nodes } = await startNodes(t, 2)
  const [first, second] = nodes as [RelayServer, RelayServer]
  let resolved = hosts.slice(0, 1)
  const { promise: opened, resolve: open } = Promise.withResolvers<void>()
  const engine = new CountingBackend({ chunks: 3, gate: opened })
  startWorker(t, port, () => resolved, engine)
  await until(() => hasWorker(first))
  t.notOk(hasWorker(second))
  const text = readEvents(first.backend, chatRequest('count')).then(getText)
  await until(() => engine.running === 1)
  resolved = hosts.slice(1)
  await until(() => hasWorker(second))
  await until(() => first.backend.list()[0]?.draining === true)
  t.notOk(second.backend.list()[0]?.draining, 'the worker leaves one node, and no other')
  await t.rejects(readEvents(first.backend, chatRequest('more')), { code: 'no_worker' })
  open()
  t.equal(await text, countedText(3))
  await until(() => first.backend.list().length === 0)
  t.equal(getText(await readEvents(second.backend, chatRequest('count'))), countedText(3))
})

t.test(
  'a node whose address was missing for a while keeps its requests, and gets new ones again',
  async (t) => {
    const { port, hosts, nodes } = await startNodes(t, 1)
    const [node] = nodes as [RelayServer]
    let resolved: readonly string[] = hosts
    const { promise: opened, resolve: open } = Promise.withResolvers<void>()
    const engine = new CountingBackend({ chunks: 3, gate: opened })
    startWorker(t, port, () => resolved, engine)
    await until(() => hasWorker(node))
    const texts = ['waits', 'waits too'].map((text) =>
      readEvents(node.backend, chatRequest(text)).then(getText),
    )
    await until(() => engine.running === 2)
    // The responses of an outdated resolver: the node itself is healthy all the time.
    resolved = ['127.0.0.2']
    await until(() => node.backend.list()[0]?.draining === true)
    resolved = hosts
    await until(() => node.backend.list()[0]?.draining === false)
    t.equal(engine.running, 2)
    open()
    t.same(await Promise.all(texts), [countedText(3), countedText(3)])
    t.equal(engine.requests.length, 2, 'nothing was sampled twice')
    t.equal(getText(await readEvents(node.backend, chatRequest('count'))), countedText(3))
    // This may happen any number of times.
    resolved = ['127.0.0.2']
    await until(() => !hasWorker(node))
    resolved = hosts
    await until(() => hasWorker(node) && node.backend.list()[0]?.draining === false)
    t.equal(getText(await readEvents(node.backend, chatRequest('count'))), countedText(3))
  },
)

t.test('a node that returns at another address is found again', async (t) => {
  const { port, hosts, nodes, start } = await startNodes(t, 1)
  let resolved: readonly string[] = hosts
  const { worker } = startWorker(t, port, () => resolved)
  await until(() => hasWorker(nodes[0]!))
  await nodes[0]!.close()
  const moved = await start('127.0.0.2')
  resolved = ['127.0.0.2']
  await until(() => hasWorker(moved))
  await until(() => worker.isConnected)
})

t.test('a worker that is stopped before its name was resolved ends, and connects to no node', async (t) => {
  const port = await freePort()
  const { promise: addresses, resolve } = Promise.withResolvers<string[]>()
  const worker = new InferenceWorkerClient({
    proxyUrls: [`dns+http://nodes.example:${port}`],
    workerId: 'w',
    backend: new CountingBackend(),
    maxConcurrency: 4,
    logger: silentLogger,
    resolve: () => addresses,
    dial: () => {
      throw new Error('connected')
    },
  })
  worker.start()
  const stopped = once(worker, 'stopped')
  t.same(await worker.stop(), { drained: true })
  await stopped
  resolve(['127.0.0.1'])
  await addresses
  t.notOk(worker.isConnected)
})
