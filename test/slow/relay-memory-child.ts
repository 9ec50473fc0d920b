/**
 * Serves requests over a relay and a worker, a tenth of them aborted, and prints the heap's size between rounds as
 * JSON.
 */
import { InferenceWorkerClient } from '../../src/worker/inference-worker-client.ts'
import { CountingBackend } from '../helpers/counting-backend.ts'
import { pull } from '../helpers/event-stream.ts'
import { chatRequest, startRelayServer } from '../helpers/relay-server.ts'
import { silentLogger } from '../helpers/silent-logger.ts'
import { until } from '../helpers/until.ts'

const [rounds, requestsPerRound] = process.argv.slice(2).map(Number) as [number, number]
const CONCURRENCY = 32

const { backend, url } = await startRelayServer()
const engine = new CountingBackend({ chunks: 2 })
const worker = new InferenceWorkerClient({
  proxyUrls: [url],
  workerId: 'w',
  backend: engine,
  maxConcurrency: CONCURRENCY,
  logger: silentLogger,
})
worker.start()

async function sendRequest(number: number): Promise<void> {
  const agent = new AbortController()
  const request = chatRequest('count')
  try {
    for await (const _ of pull(backend, request, agent.signal)) if (number % 10 === 0) agent.abort()
  } catch (thrown) {
    if (thrown !== agent.signal.reason) throw thrown
  }
  backend.releaseSession(request.sessionId)
}

async function round(): Promise<void> {
  let number = 0
  const agents = Array.from({ length: CONCURRENCY }, async () => {
    while (number < requestsPerRound) {
      number += 1
      await sendRequest(number)
    }
  })
  await Promise.all(agents)
  await until(() => engine.running === 0)
  engine.requests.length = 0
  engine.released.length = 0
}

function heapBytes(): number {
  gc!()
  return process.memoryUsage().heapUsed
}

const heaps: number[] = []
for (let done = 0; done < rounds; done += 1) {
  await round()
  heaps.push(heapBytes())
}
console.log(JSON.stringify({ heaps, queued: backend.getStatus().queued }))
process.exit()
