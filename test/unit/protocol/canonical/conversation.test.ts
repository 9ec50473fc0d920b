import fc from 'fast-check'
import t from 'tap'
import {
  getMessagesBetween,
  type Message,
  MessageTree,
} from '../../../../src/protocol/canonical/conversation.ts'
import type { ChatMessage } from '../../../../src/protocol/canonical/messages.ts'
import { parseRequest } from '../../../../src/protocol/canonical/number-texts.ts'

const LONG = 'What an agent says. '.repeat(20)
const user = (content: string): ChatMessage => ({ role: 'user', content })

function textsUpTo(last: Message | undefined): string[] {
  return getMessagesBetween(undefined, last).map(({ json }) => json)
}

function write(tree: MessageTree, last: Message | undefined): string {
  return last === undefined ? '' : Buffer.concat(tree.getJsonUpTo(last)).toString()
}

t.test('data about a message does not grow with the number of trees before', async (t) => {
  const countNotes = () => {
    const tree = new MessageTree()
    const last = tree.addMessages([user('a'), user('b')])!
    tree.getJsonUpTo(last)
    return last.notes.length
  }
  const first = countNotes()
  for (let trees = 0; trees < 100; trees += 1) new MessageTree()
  t.equal(countNotes(), first)
})

t.test('text beyond Latin-1 counts as two bytes per character', async (t) => {
  const toBytes = (content: string) => {
    const tree = new MessageTree()
    tree.addMessages([user(content)])
    return tree.bytes
  }
  t.equal(toBytes('字'.repeat(10_000)) - toBytes('字'.repeat(5_000)), 10_000)
  t.equal(toBytes('a'.repeat(10_000)) - toBytes('a'.repeat(5_000)), 5_000)
})

t.test('content of earlier requests is stored once: as values, or as the texts of a record', async (t) => {
  const content = 'x'.repeat(100_000)
  const tree = new MessageTree()
  const last = tree.addMessages([user(content)])!
  t.ok(tree.bytes > content.length)
  tree.releaseJson()
  t.ok(tree.bytes < 2_000, `${tree.bytes} bytes`)
  t.ok(tree.valueBytes >= content.length)
  t.equal(last.json, JSON.stringify(user(content)))
  const recorded = new MessageTree()
  const text = JSON.stringify(user(content)).replace(':', ' : ')
  const read = recorded.addMessageTexts([text])!
  recorded.releaseJson()
  t.equal(read.json, text, 'with another formatting')
  t.same(read.value, user(content))
  t.ok(recorded.bytes > content.length)
})

t.test('numbers keep their text when a message is serialized again', async (t) => {
  const assistant =
    '{"role":"assistant","tool_calls":[{"function":{"arguments":{"x":1.0,"y":9007199254740993}}}]}'
  const { messages } = parseRequest(`{"tools":[],"messages":[${assistant}]}`) as { messages: ChatMessage[] }
  const tree = new MessageTree()
  const last = tree.addMessages(messages)!
  t.equal(last.json, assistant)
  tree.releaseJson()
  t.equal(last.json, assistant)
})

t.test('each message is the same object with the same content, independent of evictions', async () => {
  const content = fc.constantFrom(
    'a',
    'b',
    LONG,
    `${LONG}!`,
    '字',
    '\ud800',
    `${LONG}\ud800`,
    `${LONG}\udfff`,
  )
  const request = fc.record({
    contents: fc.array(content, { maxLength: 5 }),
    /** Whether the request contains the same objects as earlier ones where the content is equal. */
    known: fc.boolean(),
    how: fc.constantFrom('values', 'values', 'values', 'texts'),
    writes: fc.boolean(),
  })
  fc.assert(
    fc.property(fc.array(request, { maxLength: 12 }), (requests) => {
      const [evicting, retaining] = [new MessageTree(), new MessageTree()]
      retaining.keepJson()
      const pairs = new Map<Message | undefined, Message | undefined>()
      const objects = new Map<string, ChatMessage>()
      const getMessage = (index: number, text: string): ChatMessage => {
        const key = `${index} ${text}`
        const existing = objects.get(key) ?? user(text)
        objects.set(key, existing)
        return existing
      }
      for (const { contents, known, how, writes } of requests) {
        const values = contents.map((text, index) => (known ? getMessage(index, text) : user(text)))
        const texts = values.map((value) => JSON.stringify(value))
        const [one, other] = [evicting, retaining].map((tree) =>
          how === 'texts' ? tree.addMessageTexts(texts) : tree.addMessages(values),
        )
        if (pairs.has(one) && pairs.get(one) !== other) return false
        pairs.set(one, other)
        if (textsUpTo(one).join() !== texts.join() || textsUpTo(other).join() !== texts.join()) return false
        if (writes && write(evicting, one) !== texts.join()) return false
      }
      return new Set(pairs.values()).size === pairs.size
    }),
    { numRuns: 500 },
  )
})

t.test('a message written as text, as one object and as another object is one message', async (t) => {
  const tree = new MessageTree()
  tree.addMessages([{ role: 'user', content: 'first' }])
  const createMessage = () => ({ role: 'user', content: 'b' }) as const
  const second = tree.addMessageTexts([JSON.stringify(createMessage())])
  t.equal(tree.addMessages([createMessage()]), second)
  t.equal(tree.addMessages([createMessage()]), second)
})
