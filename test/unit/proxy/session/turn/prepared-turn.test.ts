import t from 'tap'
import { getMessagesBetween } from '../../../../../src/protocol/canonical/conversation.ts'
import type { ChatMessage, Tool } from '../../../../../src/protocol/canonical/messages.ts'
import type { CanonicalRequest } from '../../../../../src/protocol/canonical/request.ts'
import { SessionMemory } from '../../../../../src/proxy/session/state/session-memory.ts'
import { serializeRequestTexts } from '../../../../../src/proxy/session/turn/prepared-turn.ts'

const userMessage = (content: string): ChatMessage => ({ role: 'user', content })
const TOOLS: Tool[] = [{ type: 'function', function: { name: 'f' } }]

function createRequest(messages: ChatMessage[], tools: Tool[] | null = null): CanonicalRequest {
  return { kind: 'chat', body: { model: 'm', messages, tools, seed: 1 } }
}

function serialize(memory: SessionMemory, request: CanonicalRequest) {
  const { lastMessage, ...written } = serializeRequestTexts(request, memory)
  return { ...written, messages: getMessagesBetween(undefined, lastMessage).map(({ json }) => json) }
}

t.test('a request is serialized message by message, with tools and other fields separate', (t) => {
  const memory = new SessionMemory()
  const messages = [userMessage('a'), userMessage('b')]
  t.same(serialize(memory, createRequest(messages, TOOLS)), {
    messages: messages.map((message) => JSON.stringify(message)),
    tools: JSON.stringify(TOOLS),
    params: '{"model":"m","seed":1}',
    promptPieces: [],
  })
  t.same(serialize(memory, { kind: 'completion', body: { prompt: 'p' } }), {
    messages: [],
    tools: null,
    params: '{}',
    promptPieces: ['"p'],
  })
  t.end()
})

t.test('texts of earlier requests of the session, and no others, are reused', (t) => {
  const memory = new SessionMemory()
  const [a, b] = [userMessage('a'), userMessage('b')]
  const first = serialize(memory, createRequest([a, b], TOOLS))
  // The test changes the tools to prove that repeated ones are not serialized again.
  Object.assign(TOOLS[0]!, { type: 'changed' })
  serialize(memory, createRequest([userMessage('x')]))
  const { written } = memory.messages
  t.same(serialize(memory, createRequest([a, b, userMessage('c')], TOOLS)), {
    ...first,
    messages: [...first.messages, JSON.stringify(userMessage('c'))],
  })
  t.equal(memory.messages.written - written, 1)
  const copies = serialize(memory, createRequest([{ ...a }, b], [...TOOLS]))
  t.same(copies.messages, [JSON.stringify(a), JSON.stringify(b)])
  t.same(copies.tools, JSON.stringify(TOOLS))
  t.same(
    serialize(new SessionMemory(), createRequest([a])).messages,
    [JSON.stringify(a)],
    'in another session',
  )
  t.end()
})

t.test('nesting that JSON cannot represent is an invalid request', (t) => {
  let deep: unknown = []
  for (let depth = 0; depth < 100_000; depth += 1) deep = [deep]
  const message = { role: 'user', content: deep } as ChatMessage
  t.throws(() => serialize(new SessionMemory(), createRequest([message])), { code: 'invalid_request' })
  t.end()
})
