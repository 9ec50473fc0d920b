/** Changes of an agent to its messages, as people read them. */
import t from 'tap'
import { type Message, MessageTree } from '../../../../../src/protocol/canonical/conversation.ts'
import type { ChatMessage } from '../../../../../src/protocol/canonical/messages.ts'
import {
  describeChange,
  getCompletionText,
  getMessageText,
  getToolNames,
  isEdited,
} from '../../../../../src/proxy/session/trajectories/message-changes.ts'

function getLast(...messages: unknown[]): Message {
  return new MessageTree().addMessages(messages as ChatMessage[])!
}

const createTurn = (lastMessage: Message) => ({ lastMessage, completionText: null, toolCalls: '[]' })
const user = (content: unknown) => ({ role: 'user', content })
const toolCall = { id: 'c', type: 'function', function: { name: 'run', arguments: '{"a":1}' } }

t.test('a change starts one line before the first difference, with its line number', async (t) => {
  t.strictSame(describeChange('text', 'one\ntwo\nthree\nfour', 'one\ntwo\nTHREE\nfour'), {
    ...{ what: 'text', before: 'two\nthree\nfour', now: 'two\nTHREE\nfour', line: 3 },
  })
  t.strictSame(describeChange('text', 'same', 'same and more'), {
    ...{ what: 'text', before: 'same', now: 'same and more', line: 1 },
  })
  const { before } = describeChange('text', 'x'.repeat(1_000), '')
  t.equal(before, `${'x'.repeat(800)}…`)
})

t.test('a message counts as edited if half of its text is unchanged at its ends', async (t) => {
  const isTextEdited = (before: string, now: string) => {
    const [old, text] = [getLast(user(before)), getLast(user(now))]
    return isEdited(old, text, createTurn(old), text)
  }
  t.equal(isTextEdited('abcdXXXXefgh', 'abcdYYYYefgh'), true, 'the ends count together')
  t.equal(isTextEdited('abXXXXXX', 'abYYYYYY'), false)
  t.equal(isTextEdited('abcdXXXX', 'abcdYYYY'), true, 'half is enough')
  t.equal(isTextEdited('abc', 'abcdefgh'), false, 'of the longer one')
  t.equal(isTextEdited('aaaa', 'aaaaaaaa'), true, 'no character counts at both ends')
  t.equal(isTextEdited('aaa', 'aaaaaaaa'), false)
})

t.test('a message counts as edited if both conversations continue alike', async (t) => {
  const [next, other] = [user('go on'), user('stop')]
  const [before, now] = [getLast(user('abc'), next), getLast(user('xyz'), next)]
  t.equal(isEdited(before.parent!, now.parent!, createTurn(before), now), true)
  const elsewhere = getLast(user('xyz'), other)
  t.equal(isEdited(before.parent!, elsewhere.parent!, createTurn(before), elsewhere), false)
  const alone = getLast(user('xyz'))
  t.equal(isEdited(before.parent!, alone, createTurn(before), alone), false, 'nothing follows on one')
})

t.test('a message is shown as its content and its tool calls, line by line', async (t) => {
  t.equal(getMessageText(getLast(user('hello'))), 'hello')
  t.equal(getMessageText(getLast(user(null))), '')
  t.match(getMessageText(getLast(user([{ type: 'text', text: 'part' }]))), '"text": "part"')
  const assistantMessage = { role: 'assistant', content: 'Looking.', tool_calls: [toolCall, toolCall] }
  t.equal(getMessageText(getLast(user('hello'), assistantMessage)), 'Looking.\nrun({"a":1})\nrun({"a":1})')
  t.equal(getCompletionText({ completionText: null, toolCalls: JSON.stringify([toolCall]) }), 'run({"a":1})')
  t.equal(getCompletionText({ completionText: 'Done.', toolCalls: '[]' }), 'Done.')
})

t.test('tools are named as each dialect names them', async (t) => {
  const tools = [{ type: 'function', function: { name: 'run' } }, { name: 'Bash' }, { type: 'web_search' }]
  t.equal(getToolNames(JSON.stringify(tools)), 'run\nBash\nweb_search')
  t.equal(getToolNames(null), '')
})
