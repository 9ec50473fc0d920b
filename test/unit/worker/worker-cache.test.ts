import t from 'tap'
import type { GenerationRequest } from '../../../src/protocol/canonical/request.ts'
import { PromptIds } from '../../../src/protocol/token-ids/prompt-ids.ts'
import { PromptLists } from '../../../src/protocol/token-ids/prompt-lists.ts'
import { ProxyCache, UNUSED_TTL_MS, WorkerCache } from '../../../src/worker/worker-cache.ts'

const IDS = Array.from({ length: 100_000 }, (_, id) => id)
const ID_BYTES = Buffer.from(IDS.join())
const CONTENT = 'x'.repeat(100_000)
/** More sessions than a worker caches. */
const MANY = 500

/** Reads the frame of a request of 100,000 tokens, and records its prompt as sent. */
function serve(cache: ProxyCache, sessionId: string): void {
  const messages = [{ role: 'user', content: CONTENT }]
  cache.read(
    Buffer.from(JSON.stringify({ type: 'completion_request', session_id: sessionId, body: { messages } })),
  )
  const promptLists = new PromptLists()
  const ids = promptLists.read(ID_BYTES, 0, ID_BYTES.length)!
  cache.recordSentPrompt({ requestId: `${sessionId} 1`, sessionId, promptLists } as GenerationRequest, ids)
}

t.test("a worker's memory does not depend on the number of proxies that it dials", (t) => {
  const cache = new WorkerCache(() => 0)
  const proxies = ['a', 'b'].map((name) => new ProxyCache(cache, name))
  const findPrompts = () =>
    proxies.map((proxy) =>
      Array.from({ length: MANY }, (_, index) => proxy.getPrompt(`${index} 1`)).filter(Boolean),
    )
  for (let index = 0; index < MANY; index += 1) serve(proxies[0]!, `${index}`)
  const countOfOne = findPrompts().flat().length
  t.ok(countOfOne >= 250 && countOfOne < MANY, `${countOfOne} prompts of one proxy`)
  for (let index = 0; index < MANY; index += 1) serve(proxies[1]!, `${index}`)
  t.equal(findPrompts().flat().length, countOfOne, 'and as many of two')
  t.end()
})

t.test('sessions of two proxies with the same name are separate', (t) => {
  const cache = new WorkerCache(() => 0)
  const [a, b] = [new ProxyCache(cache, 'a'), new ProxyCache(cache, 'b')]
  serve(a, 's')
  t.ok(a.getPrompt('s 1'))
  t.equal(b.getPrompt('s 1'), undefined)
  t.ok(a.getPromptLists('s').idBytes > 0)
  t.equal(b.getPromptLists('s').idBytes, 0)
  b.recordSentPrompt(
    { requestId: 's 1', sessionId: 's' } as GenerationRequest,
    new PromptIds(Int32Array.from(IDS).fill(7)),
  )
  t.equal(a.getPrompt('s 1')!.toArray()[1], 1)
  t.equal(b.getPrompt('s 1')!.toArray()[1], 7)
  t.end()
})

t.test('an ended session is evicted, whatever its name', (t) => {
  for (const sessionId of ['s', 'a "quoted" Zürich', 'harbor/hello:0']) {
    const cache = new WorkerCache(() => 0)
    const proxy = new ProxyCache(cache, 'a')
    const inFrame = Buffer.from(JSON.stringify(sessionId).slice(1, -1)).toString('latin1')
    serve(proxy, sessionId)
    serve(proxy, 'other')
    t.ok(cache.requests.get(`a ${inFrame}`) && proxy.getPromptLists(sessionId).idBytes > 0, sessionId)
    proxy.forget(sessionId)
    t.notOk(cache.requests.get(`a ${inFrame}`) || proxy.getPromptLists(sessionId).idBytes > 0)
    t.ok(cache.requests.get('a other') && proxy.getPromptLists('other').idBytes > 0, 'others stay')
  }
  t.end()
})

t.test('prompts unused for ten minutes are evicted, and used ones are not', (t) => {
  let nowMs = 0
  const cache = new WorkerCache(() => nowMs)
  const proxy = new ProxyCache(cache, 'a')
  serve(proxy, 'left')
  serve(proxy, 'used')
  nowMs = UNUSED_TTL_MS - 1
  cache.forgetUnused()
  t.ok(proxy.getPrompt('used 1'), 'one that is used now')
  nowMs = UNUSED_TTL_MS
  cache.forgetUnused()
  t.equal(proxy.getPrompt('left 1'), undefined)
  t.equal(proxy.getPromptLists('left').idBytes, 0)
  t.ok(proxy.getPrompt('used 1'))
  t.end()
})
