/** The session state in memory, and the part of it that may be evicted. */
import fc from 'fast-check'
import t from 'tap'
import { ProxyError } from '../../../../../src/base/errors.ts'
import { intercept } from '../../../../../src/base/interceptor.ts'
import { MessageTree } from '../../../../../src/protocol/canonical/conversation.ts'
import type { ChatMessage } from '../../../../../src/protocol/canonical/messages.ts'
import { getMessageKey } from '../../../../../src/proxy/session/matching/conversation.ts'
import { TokenPrompts } from '../../../../../src/proxy/session/prompts/token-prompts.ts'
import { SessionMemory } from '../../../../../src/proxy/session/state/session-memory.ts'
import { createConversation } from '../../../../helpers/messages.ts'
import { openMemoryStore } from '../../../../helpers/store-in-process.ts'
import { loadTokenModel } from '../conversation-player.ts'

const toolCallMessage: ChatMessage = {
  role: 'assistant',
  content: null,
  tool_calls: [{ id: 'c', type: 'function', function: { name: 'f', arguments: '{}' } }],
}
const message = fc.constantFrom<ChatMessage>(
  { role: 'user', content: 'a' },
  { role: 'user', content: 'b' },
  toolCallMessage,
  { role: 'assistant', content: 'a' },
  { role: 'tool', tool_call_id: 'c', content: 'r' },
)

t.test('a partly evicted conversation is read as if it were new', async () => {
  const getKeys = (messages: readonly ChatMessage[], tree?: MessageTree) => {
    const keys = []
    for (let message = createConversation(messages, null, tree).last; message; message = message.parent)
      keys.push(getMessageKey(message))
    return JSON.stringify(keys)
  }
  const requests = fc.array(fc.array(message, { maxLength: 6 }))
  fc.assert(
    fc.property(requests, (requests) => {
      const tree = new MessageTree()
      return requests.every((messages) => getKeys(messages, tree) === getKeys(messages))
    }),
  )
})

t.test('a session that cannot be read fails its request, and is read again by the next', async (t) => {
  let isBroken = true
  const store = intercept(await openMemoryStore(), {
    readSteps: async function* (proceed) {
      if (isBroken) throw new ProxyError('store_failed', 'the disk is gone')
      yield* proceed()
    },
  })
  const prompts = new TokenPrompts(loadTokenModel('qwen3'), store)
  const memory = new SessionMemory()
  const messages: ChatMessage[] = [{ role: 'user', content: 'Hello.' }]
  const begin = () => {
    const lastMessage = memory.messages.addMessages(messages)
    const request = { requestId: 'r', sessionId: 's', stream: false, lastMessage }
    return prompts.begin({ ...request, kind: 'chat', body: { messages } }, memory)
  }
  await Promise.all([begin(), begin()].map((failing) => t.rejects(failing, { code: 'store_failed' })))
  isBroken = false
  t.ok((await begin()).request)
})
