import { once } from 'node:events'
import { connect } from 'node:net'
import { setTimeout as sleep } from 'node:timers/promises'
import t from 'tap'
import { PromptIds } from '../../src/protocol/token-ids/prompt-ids.ts'
import type { EventStream } from '../helpers/event-stream.ts'
import {
  createAgent,
  getTurns,
  startRelayProxy,
  startWorkerClient,
  streamResponse,
  untilWorkers,
} from '../helpers/relay-rig.ts'
import { ScriptedBackend } from '../helpers/scripted-backend.ts'
import { until } from '../helpers/until.ts'

const CHUNK = 'x'.repeat(64 * 1024)

/** Never ends for a prompt that contains `go on`; responds with one word to any other. */
class EndlessBackend extends ScriptedBackend {
  chunkCount = 0
  running = 0

  constructor() {
    super(({ body }, signal) => this.#respond(JSON.stringify(body.messages).includes('go on'), signal))
  }

  override getStatus() {
    const { running: inFlight } = this
    const member = {
      name: 'endless',
      kind: 'embedded',
      healthy: true,
      models: [],
      capacity: 8,
      takesTokenIds: true,
    }
    return { members: [{ ...member, inFlight }], queued: 0 }
  }

  async *#respond(isEndless: boolean, signal: AbortSignal): EventStream {
    yield [{ type: 'start', engine: 'endless', promptTokenIds: PromptIds.of(1) }]
    this.running += 1
    try {
      while (isEndless) {
        await sleep(0, undefined, { signal })
        this.chunkCount += 1
        yield [{ type: 'delta', content: CHUNK }]
      }
      yield [
        { type: 'delta', content: 'word' },
        { type: 'end', finishReason: 'stop' },
      ]
    } finally {
      this.running -= 1
    }
  }
}

t.test('an agent that stops reading stops its own request, and no other of the same worker', async (t) => {
  const proxy = await startRelayProxy(t, { relayTimeoutMs: 2_500 })
  const engine = new EndlessBackend()
  startWorkerClient(t, proxy.url, 'w', engine)
  await untilWorkers(proxy, 'w')
  const agent = connect(Number(new URL(proxy.url).port), '127.0.0.1')
  t.teardown(() => agent.destroy())
  let tail = ''
  agent.on('data', (bytes) => {
    tail = (tail + bytes).slice(-1_000)
  })
  agent.pause()
  const body = '{"messages":[{"role":"user","content":"go on"}],"stream":true}'
  agent.write(
    `POST /slow/v1/chat/completions HTTP/1.1\r\nhost: proxy\r\ncontent-length: ${body.length}\r\n\r\n${body}`,
  )

  for (let before = -1; before < engine.chunkCount || before === 0; await sleep(300))
    before = engine.chunkCount
  t.ok(
    engine.chunkCount * CHUNK.length < 32 * 1024 * 1024,
    'what the kernel and the window buffer, and no more',
  )
  t.equal(engine.running, 1, 'the engine waits')
  const others = Array.from({ length: 20 }, (_, i) => streamResponse(createAgent(proxy, `quick-${i}`)))
  for (const other of await Promise.all(others)) t.same(other, { text: 'word', error: undefined })

  // After the relay timeout its work is cancelled.
  await until(() => engine.running === 0)
  agent.resume()
  while (!tail.includes('0\r\n\r\n')) await once(agent, 'data')
  t.match(tail, /"code":"agent_too_slow"/, 'it receives the error when it reads again')
  t.match(await getTurns(proxy, 'slow'), [
    { status: 'failed', error: { code: 'agent_too_slow' }, finish_reason: null },
  ])
})
