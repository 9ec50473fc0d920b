/**
 * Sessions that are never ended, each with a few requests. Prints as JSON, after each round, the heap, the accounted
 * part of it, and how many sessions are cached.
 */
import { setTimeout as sleep } from 'node:timers/promises'
import { ChatPrompts } from '../../src/proxy/session/prompts/chat-prompts.ts'
import { Sessions } from '../../src/proxy/session/state/sessions.ts'
import { TurnRunner } from '../../src/proxy/session/turn/run-turn.ts'
import { openSqliteStore } from '../../src/proxy/store/sqlite/open.ts'
import { CountingBackend } from '../helpers/counting-backend.ts'
import { DISCARD } from '../helpers/event-stream.ts'
import { silentLogger } from '../helpers/silent-logger.ts'

const [path, memoryBytes, rounds, sessionsPerRound] = process.argv.slice(2)
const REQUESTS_PER_SESSION = 3
const CONCURRENCY = 16
const MEASUREMENTS = 5
const TEXT = 'What an agent says. '.repeat(20)

class ForgetfulBackend extends CountingBackend {
  override generate(...args: Parameters<CountingBackend['generate']>) {
    this.requests.length = 0
    return super.generate(...args)
  }
}

const store = await openSqliteStore({ path: path!, durability: 'process' })
const hooks = { onEnded() {}, onSweepFailed() {}, onSweepDeferred() {} }
const options = { strict: false, defaultTtlMs: null, memoryBytes: Number(memoryBytes) }
const sessions = new Sessions(store, hooks, options)
const runner = new TurnRunner({
  sessions,
  backend: new ForgetfulBackend({ chunks: 30 }),
  store,
  logger: silentLogger,
  prompts: new ChatPrompts(async () => 0),
})

async function runConversation(sessionId: string): Promise<void> {
  const messages: object[] = [{ role: 'system', content: `${sessionId} ${TEXT.repeat(10)}` }]
  for (let count = 0; count < REQUESTS_PER_SESSION; count += 1) {
    messages.push({ role: 'user', content: `${count} ${TEXT}` })
    using used = sessions.acquire(sessionId)
    const body = Buffer.from(JSON.stringify({ model: 'm', messages }))
    const { value, list } = used.memory.requests.read(body, undefined, { listJson: true })
    const request = {
      session: used,
      dialect: 'chat',
      request: { kind: 'chat' as const, body: value as { messages: never[] } },
      stream: false,
      metadata: { retryCount: 0, hasAgentKey: false },
      ...(list?.json && { messagesJson: [list.json] }),
    }
    const turn = await runner.begin(request, new AbortController().signal)
    await turn.deliver(DISCARD)
    messages.push({ role: 'assistant', content: turn.completion.content })
  }
}

async function round(name: number): Promise<void> {
  let started = 0
  const agents = Array.from({ length: CONCURRENCY }, async () => {
    while (started < Number(sessionsPerRound)) {
      started += 1
      await runConversation(`${name}-${started}`)
    }
  })
  await Promise.all(agents)
}

/**
 * Returns the least of several measurements, because V8 frees the memory of unreachable buffers concurrently, some time
 * after a collection.
 */
async function getRetainedBytes(): Promise<number> {
  let least = Number.POSITIVE_INFINITY
  for (let checks = 0; checks < MEASUREMENTS; checks += 1) {
    gc!()
    await sleep(50)
    const { heapUsed, arrayBuffers } = process.memoryUsage()
    least = Math.min(least, heapUsed + arrayBuffers)
  }
  return least
}

const after: object[] = []
for (let done = 0; done < Number(rounds); done += 1) {
  await round(done)
  after.push({
    heap: await getRetainedBytes(),
    counted: sessions.memory.bytes,
    cached: sessions.memory.sessions,
  })
}
console.log(JSON.stringify(after))
process.exit()
