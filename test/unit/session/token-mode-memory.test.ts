/** What token mode remembers of sessions, and what it may forget. */
import fc from 'fast-check'
import t from 'tap'
import type { ChatMessage } from '../../../src/canonical/messages.ts'
import { ProxyError } from '../../../src/errors.ts'
import { readConversation } from '../../../src/session/matching/conversation.ts'
import { KnownMessages } from '../../../src/session/matching/known-messages.ts'
import { recordedConversation } from '../../../src/session/matching/rebuild-index.ts'
import { SessionsTurns } from '../../../src/session/prompts/session-turns.ts'
import { TurnIds } from '../../../src/session/prompts/turn-ids.ts'
import { MemoryTurnStore } from '../../../src/store/memory.ts'

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
  const calls = fc.array(
    fc.record({ session: fc.constantFrom('s', 't'), messages: fc.array(message, { maxLength: 6 }) }),
  )
  fc.assert(
    fc.property(calls, fc.constantFrom(0, 300, 10_000), (calls, maxChars) => {
      const known = new KnownMessages(maxChars)
      return calls.every(({ session, messages }) => {
        const texts = messages.map((message) => JSON.stringify(message))
        const read = known.read(session, { messages, tools: null, texts })
        return JSON.stringify(read) === JSON.stringify(readConversation(messages, null))
      })
    }),
  )
})

t.test('turns that a call is about to add to are not forgotten for want of memory', async (t) => {
  const lines = new SessionsTurns(new MemoryTurnStore(), recordedConversation, 1)
  const conversation = readConversation([{ role: 'user', content: 'Hello.' }], null)
  const answerTo = async (sessionId: string) => {
    using session = await lines.borrow(sessionId)
    const line = new TurnIds(sessionId, Int32Array.of(1, 2), Int32Array.of(3))
    session.add(session.turns.match(conversation), { content: 'x', reasoning: null, toolCalls: [] }, line)
    return session.turns
  }
  const busy = await lines.borrow('busy')
  await answerTo('busy')
  await answerTo('other')
  using again = await lines.borrow('busy')
  t.equal(again.turns, busy.turns, 'a call that is in flight')
  busy[Symbol.dispose]()
  again[Symbol.dispose]()
  const idle = await answerTo('idle')
  await answerTo('next')
  using after = await lines.borrow('idle')
  t.not(after.turns, idle, 'nobody used them')
})

t.test('a session that cannot be read fails its call, and is read again by the next', async (t) => {
  let isBroken = true
  class Store extends MemoryTurnStore {
    override async *readTurns(sessionId: string) {
      if (isBroken) throw new ProxyError('store_failed', 'the disk is gone')
      yield* super.readTurns(sessionId)
    }
  }
  const lines = new SessionsTurns(new Store(), recordedConversation)
  const failing = lines.borrow('s')
  lines.forget('s')
  await t.rejects(failing, { code: 'store_failed' })
  await t.rejects(lines.borrow('s'), { code: 'store_failed' })
  isBroken = false
  using session = await lines.borrow('s')
  t.equal(session.turns.bytes, 0)
})
