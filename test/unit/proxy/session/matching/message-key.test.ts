/** The parts of a message that distinguish it from others. */
import t from 'tap'
import type { ChatMessage } from '../../../../../src/protocol/canonical/messages.ts'
import { computeMessageKey, countLetters } from '../../../../../src/proxy/session/matching/message-key.ts'
import { MessageNode } from '../../../../../src/proxy/session/matching/message-tree.ts'

const getKey = (message: object, toolCallIndex?: number) =>
  computeMessageKey(message as ChatMessage, toolCallIndex)
const getAssistant = (message: object) => getKey({ role: 'assistant', ...message }).assistant!

t.test('a result is identified by its tool call, or by its id where that is unknown', async (t) => {
  const result = (id: string) => ({ role: 'tool', tool_call_id: id, content: 'x' })
  t.not(getKey(result('a')).digest, getKey(result('b')).digest)
  t.equal(getKey(result('a'), 1).digest, getKey(result('b'), 1).digest, 'clients rename ids')
  t.not(getKey(result('a'), 1).digest, getKey(result('a'), 2).digest)
})

t.test('a text of a role alone has the key of the same message with empty fields', async (t) => {
  for (const role of ['user', 'system', 'assistant']) {
    const { digest } = getKey({ role, content: 'a "b"\ud800' })
    const empty = { name: null, function_call: '', tool_calls: [] }
    t.equal(getKey({ role, content: 'a "b"\ud800', ...empty }).digest, digest)
    t.equal(getKey({ role, content: [{ type: 'text', text: 'a "b"\ud800' }], ...empty }).digest, digest)
    t.not(getKey({ role: 'developer', content: 'a "b"\ud800' }).digest, digest)
    t.not(getKey({ role, content: 'a "b"\ud800', name: 'x' }).digest, digest)
  }
  t.not(getKey({ role: 'user', content: 'x' }, 0).digest, getKey({ role: 'user', content: 'x' }).digest)
})

t.test('an invalid id counts as absent', async (t) => {
  const calls = [{ id: 'a' }, { id: '' }, { id: 7 }, {}].map((call) => ({ ...call, function: { name: 'f' } }))
  t.strictSame(getAssistant({ tool_calls: calls }).toolCallIds, ['a', undefined, undefined, undefined])
})

t.test('reasoning is any text other than white space, under any of its names', async (t) => {
  t.equal(getAssistant({ reasoning_content: ' \n', reasoning: ' Deep\n' }).reasoning, 'Deep')
  t.equal(getAssistant({ reasoning_content: ' \n' }).reasoning, undefined)
  t.equal(getAssistant({ reasoning: '', thinking: 'Salt' }).reasoning, 'Salt')
})

t.test('the letters of a response are those of its text, its names and its arguments', async (t) => {
  const count = (message: object) => countLetters(getAssistant(message))
  t.equal(count({ content: 'Hé, 2!' }), 3)
  t.equal(count({ content: [{ type: 'text', text: 'ab' }] }), 2)
  const toolCall = { function: { name: 'run_it', arguments: '{"a":"b c"}' } }
  t.equal(count({ content: 'x', tool_calls: [toolCall] }), 1 + 5 + 3)
  t.equal(count({ tool_calls: [{ custom: { name: 'y' } }] }), count({}))
})

t.test('a message with the same content is an echo, under any policy for edited tool calls', async (t) => {
  const root = MessageNode.root<never>()
  const key = getKey({ role: 'assistant', content: 'x'.repeat(5_000) })
  const other = getKey({ role: 'assistant', content: 'y' })
  const node = root.descend(key, () => {})
  t.equal(node.isKeptBy(key, 'branch'), true)
  t.equal(node.isKeptBy(other, 'branch'), false)
  t.equal(node.isKeptBy(other, 'keep'), true)
})

t.test('a message of another role is not an echo', async (t) => {
  const node = MessageNode.root<never>().descend(getKey({ role: 'user', content: 'x' }), () => {})
  t.equal(node.scoreLikeness({ toolCallIds: '', arguments: '', margins: '' } as never, undefined), 0)
})

t.test(
  "a client's own fields, with names that begin with an underscore, are not part of a message",
  async (t) => {
    const result = { role: 'tool', tool_call_id: 'a', content: [{ type: 'text', text: 'x' }] }
    const extended = { ...result, __copilotMessageSource: { kind: 'tool' } }
    t.equal(getKey(extended, 1).digest, getKey(result, 1).digest)
    const image = { type: 'image_url', image_url: { url: 'data:x' } }
    const digestOfPart = (part: object) => getKey({ role: 'user', content: [part] }).digest
    t.equal(digestOfPart({ ...image, _id: 3 }), digestOfPart(image))
    t.not(
      getKey({ ...result, name: 'f' }, 1).digest,
      getKey(result, 1).digest,
      'a template may render any other',
    )
  },
)
