import t from 'tap'
import type { ChatMessage, Tool } from '../../../src/canonical/messages.ts'
import { RequestTextWriter } from '../../../src/session/request-texts.ts'

const said = (content: string): ChatMessage => ({ role: 'user', content })
const TOOLS: Tool[] = [{ type: 'function', function: { name: 'f' } }]

function chat(messages: ChatMessage[], tools: Tool[] | null = null) {
  return { kind: 'chat', body: { model: 'm', messages, tools, seed: 1 } } as const
}

t.test('a request is written message by message, with tools and everything else apart', (t) => {
  const writer = new RequestTextWriter()
  const messages = [said('a'), said('b')]
  t.same(writer.write('s', chat(messages, TOOLS)), {
    requestMessages: messages.map((message) => JSON.stringify(message)),
    tools: JSON.stringify(TOOLS),
    params: '{"model":"m","seed":1}',
    promptPieces: [],
  })
  t.same(writer.write('s', { kind: 'completion', body: { prompt: 'p' } }), {
    requestMessages: [],
    tools: null,
    params: '{}',
    promptPieces: ['"p'],
  })
  t.end()
})

t.test('what the last request of the session had, and nothing else, is taken from it', (t) => {
  const writer = new RequestTextWriter()
  const [a, b] = [said('a'), said('b')]
  const first = writer.write('s', chat([a, b], TOOLS))
  // A text that comes again was not written again: nobody changes messages but this test, to tell.
  for (const message of [a, b]) Object.assign(message, { content: 'changed' })
  Object.assign(TOOLS[0]!, { type: 'changed' })
  const next = [a, b, said('c')]
  t.same(writer.write('s', chat(next, TOOLS)), {
    ...first,
    requestMessages: [...first.requestMessages, JSON.stringify(said('c'))],
  })
  const copies = writer.write('s', chat([{ ...a }, b], [...TOOLS]))
  t.same(copies.requestMessages, [JSON.stringify(a), first.requestMessages[1]])
  t.same(copies.tools, JSON.stringify(TOOLS))
  t.same(writer.write('other', chat([a])).requestMessages, [JSON.stringify(a)], 'in another session')
  t.same(writer.write('s', chat([b, a])).requestMessages, [JSON.stringify(b), JSON.stringify(a)], 'elsewhere')
  t.end()
})

t.test('nesting that JSON cannot carry is an invalid request', (t) => {
  let deep: unknown = []
  for (let depth = 0; depth < 100_000; depth += 1) deep = [deep]
  const message = { role: 'user', content: deep } as ChatMessage
  t.throws(() => new RequestTextWriter().write('s', chat([message])), { code: 'invalid_request' })
  t.end()
})
