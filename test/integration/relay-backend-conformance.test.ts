import t from 'tap'
import { createVllmClient } from '../../src/proxy/engines/clients/vllm/client.ts'
import { createLocalBackend } from '../../src/proxy/engines/dispatch/local-backend.ts'
import type { RelayBackend } from '../../src/proxy/relay/relay-backend.ts'
import { InferenceWorkerClient } from '../../src/worker/inference-worker-client.ts'
import { backendSuite, type MemberUnderTest } from '../conformance/backend.ts'
import { type FakeVllm, startFakeVllm } from '../helpers/fake-vllm.ts'
import { startRelayServer } from '../helpers/relay-server.ts'
import { silentLogger } from '../helpers/silent-logger.ts'
import { until } from '../helpers/until.ts'

interface Location {
  url: string
  workerId: string
  maxConcurrency: number
  proxy: RelayBackend
}

/** A worker with its own engine. */
class WorkerMember implements MemberUnderTest {
  readonly #location: Location
  #life: { engine: FakeVllm; close(): Promise<void> } | undefined
  #requestedBefore = 0

  constructor(location: Location) {
    this.#location = location
  }

  running(): number {
    return this.#life?.engine.running() ?? 0
  }

  requestCount(): number {
    const posts = this.#life?.engine.requests.filter((request) => request.method === 'POST') ?? []
    return this.#requestedBefore + posts.length
  }

  async restart(): Promise<void> {
    const { url, workerId, maxConcurrency } = this.#location
    const engine = await startFakeVllm()
    const backend = createLocalBackend({ clients: [createVllmClient({ url: engine.url })] })
    const client = new InferenceWorkerClient({
      proxyUrls: [url],
      workerId,
      backend,
      maxConcurrency,
      logger: silentLogger,
    })
    client.start()
    await until(() => this.#isConnected())
    const close = async () => {
      await client.stop(AbortSignal.abort())
      await backend.close()
      await engine.close()
    }
    this.#life = { engine, close }
  }

  async stop(): Promise<void> {
    this.#requestedBefore = this.requestCount()
    const life = this.#life
    this.#life = undefined
    await life?.close()
    await until(() => !this.#isConnected())
  }

  #isConnected(): boolean {
    return this.#location.proxy.list().some((worker) => worker.id === this.#location.workerId)
  }
}

t.test('the relay backend', async (t) => {
  backendSuite(
    t,
    async ({ members: count, maxConcurrency, queueLimit, waitMs }) => {
      const { url, backend, close } = await startRelayServer({ queueLimit, waitMs })
      const members = Array.from(
        { length: count },
        (_, i) => new WorkerMember({ url, workerId: `w${i}`, maxConcurrency, proxy: backend }),
      )
      for (const member of members) await member.restart()
      return {
        backend,
        members,
        model: 'fake',
        endless: { ignore_eos: true },
        async close() {
          for (const member of members) await member.stop()
          await close()
        },
      }
    },
    'no_worker',
  )
})
