/** What is remembered of sessions, and what may be forgotten. */
import fc from 'fast-check'
import t from 'tap'
import { ProxyError } from '../../../src/base/errors.ts'
import { MessageTree } from '../../../src/protocol/canonical/conversation.ts'
import type { ChatMessage } from '../../../src/protocol/canonical/messages.ts'
import { keyOf } from '../../../src/proxy/session/matching/conversation.ts'
import { TokenPrompts } from '../../../src/proxy/session/prompts/token-prompts.ts'
import { SessionMemories, type SessionMemory } from '../../../src/proxy/session/state/session-memory.ts'
import { MemoryTurnStore } from '../../helpers/memory-store.ts'
import { conversationOf } from '../../helpers/messages.ts'
import { loadTokenModel } from './token-mode-talk.ts'

const call: ChatMessage = {
  role: 'assistant',
  content: null,
  tool_calls: [{ id: 'c', type: 'function', function: { name: 'f', arguments: '{}' } }],
}
const message = fc.constantFrom<ChatMessage>(
  { role: 'user', content: 'a' },
  { role: 'user', content: 'b' },
  call,
  { role: 'assistant', content: 'a' },
  { role: 'tool', tool_call_id: 'c', content: 'r' },
)

t.test('a conversation that is known in part is read as if it were new', async () => {
  const keysOf = (messages: readonly ChatMessage[], tree?: MessageTree) => {
    const keys = []
    for (let at = conversationOf(messages, null, tree).last; at; at = at.parent) keys.push(keyOf(at))
    return JSON.stringify(keys)
  }
  const calls = fc.array(fc.array(message, { maxLength: 6 }))
  fc.assert(
    fc.property(calls, (calls) => {
      const tree = new MessageTree()
      return calls.every((messages) => keysOf(messages, tree) === keysOf(messages))
    }),
  )
})

function say(memory: SessionMemory, chars: number): void {
  memory.messages.lastOf([{ role: 'user', content: 'x'.repeat(chars) }])
}

t.test('all sessions share one budget, and those that were used last are remembered', async (t) => {
  const memories = new SessionMemories(100_000)
  for (let session = 0; session < 100; session += 1) {
    using held = memories.hold(`s${session}`)
    say(held.memory, 10_000)
  }
  t.ok(memories.bytes <= 100_000, `${memories.bytes} bytes`)
  using last = memories.hold('s99')
  t.ok(last.memory.bytes > 10_000)
  using first = memories.hold('s0')
  t.equal(first.memory.bytes, 0)
})

t.test('what a call that is in flight adds is not forgotten for want of memory', async (t) => {
  const memories = new SessionMemories(1)
  const busy = memories.hold('busy')
  say(busy.memory, 100)
  for (const other of ['a', 'b']) {
    using held = memories.hold(other)
    say(held.memory, 100)
  }
  using again = memories.hold('busy')
  t.equal(again.memory, busy.memory)
  busy[Symbol.dispose]()
  busy[Symbol.dispose]()
  again[Symbol.dispose]()
  using after = memories.hold('busy')
  t.not(after.memory, again.memory, 'nobody used it')
})

t.test('an ended session is not counted, nor is what its last calls add', async (t) => {
  const memories = new SessionMemories(1_000_000)
  using held = memories.hold('s')
  say(held.memory, 1_000)
  memories.hold('s')[Symbol.dispose]()
  t.ok(memories.bytes > 1_000)
  memories.forget('s')
  say(held.memory, 5_000)
  held[Symbol.dispose]()
  t.equal(memories.bytes, 0)
})

t.test('a session that cannot be read fails its call, and is read again by the next', async (t) => {
  let isBroken = true
  class Store extends MemoryTurnStore {
    override async *readTurns(sessionId: string) {
      if (isBroken) throw new ProxyError('store_failed', 'the disk is gone')
      yield* super.readTurns(sessionId)
    }
  }
  const prompts = new TokenPrompts(loadTokenModel('qwen3'), new Store())
  using held = new SessionMemories(1_000_000).hold('s')
  const messages: ChatMessage[] = [{ role: 'user', content: 'Hello.' }]
  const begin = () => {
    const lastMessage = held.memory.messages.lastOf(messages)
    const request = { requestId: 'r', sessionId: 's', stream: false, lastMessage }
    return prompts.begin({ ...request, kind: 'chat', body: { messages } }, held.memory)
  }
  await Promise.all([begin(), begin()].map((failing) => t.rejects(failing, { code: 'store_failed' })))
  isBroken = false
  t.ok((await begin()).request)
})
