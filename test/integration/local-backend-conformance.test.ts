import t from 'tap'
import { createVllmClient } from '../../src/proxy/engines/clients/vllm/client.ts'
import { createLocalBackend } from '../../src/proxy/engines/dispatch/local-backend.ts'
import { backendSuite, type MemberUnderTest } from '../conformance/backend.ts'
import { type FakeVllm, startFakeVllm } from '../helpers/fake-vllm.ts'

class EngineMember implements MemberUnderTest {
  readonly port: number
  #engine: FakeVllm | undefined
  #requestedBefore = 0

  constructor(engine: FakeVllm) {
    this.#engine = engine
    this.port = engine.port
  }

  running(): number {
    return this.#engine?.running() ?? 0
  }

  requestCount(): number {
    const posts = this.#engine?.requests.filter((request) => request.method === 'POST') ?? []
    return this.#requestedBefore + posts.length
  }

  async stop(): Promise<void> {
    this.#requestedBefore = this.requestCount()
    const engine = this.#engine
    this.#engine = undefined
    await engine?.close()
  }

  async restart(): Promise<void> {
    this.#engine = await startFakeVllm({ port: this.port })
  }
}

t.test('the local backend', async (t) => {
  backendSuite(
    t,
    async ({ members: count, maxConcurrency, queueLimit, waitMs }) => {
      const engines = await Promise.all(Array.from({ length: count }, () => startFakeVllm()))
      const members = engines.map((engine) => new EngineMember(engine))
      const backend = createLocalBackend({
        clients: engines.map((engine) => createVllmClient({ url: engine.url })),
        maxConcurrencyPerEngine: maxConcurrency,
        queueLimit,
        waitMs,
        healthIntervalMs: 50,
      })
      const close = async () => {
        await backend.close()
        for (const member of members) await member.stop()
      }
      return { backend, members, model: 'fake', endless: { ignore_eos: true }, close }
    },
    'engine_unreachable',
  )
})
