/** Restores the sampled messages of a conversation that its agent has changed. */
import t from 'tap'
import { getMessagesBetween } from '../../../../../src/protocol/canonical/conversation.ts'
import type { CompletionMessage, IndexTurn } from '../../../../../src/proxy/session/matching/prefix-index.ts'
import type { SessionTurn } from '../../../../../src/proxy/session/matching/session-turns.ts'
import type { ToolCallIds } from '../../../../../src/proxy/session/matching/tool-call-ids.ts'
import { restoreSampled } from '../../../../../src/proxy/session/prompts/restore-sampled.ts'
import { createConversation } from '../../../../helpers/messages.ts'

const user = (content: string) => ({ role: 'user', content })
const call = (id: string, args = '{}') => ({
  id,
  type: 'function',
  function: { name: 'run', arguments: args },
})
const result = (id: string, content: string) => ({ role: 'tool', tool_call_id: id, content })
const createMessage = (...calls: object[]) => ({ role: 'assistant', content: 'Go', tool_calls: calls })

/** Creates the model's ids of tool calls, by the ids that the agent received. */
const createIds = (own: Record<string, string> = {}) => {
  const ids = { hasOwn: Object.keys(own).length > 0, findOriginal: (id: string) => own[id], addBytes() {} }
  return ids as unknown as ToolCallIds
}

function createMessages(...messages: object[]) {
  return getMessagesBetween(undefined, createConversation(messages).last)
}

/** Creates a turn whose completion is the second message. */
function createTurn(...calls: object[]): IndexTurn<SessionTurn> {
  const completion = { content: 'Go', reasoning: null, toolCalls: calls } as unknown as CompletionMessage
  return {
    turn: { completionMessage: completion },
    depth: 2,
    parent: undefined,
  } as unknown as IndexTurn<SessionTurn>
}

const getValues = (messages: readonly { value: unknown }[]) => messages.map(({ value }) => value)

t.test('unchanged echoes are the same message objects', async (t) => {
  const messages = createMessages(
    user('hi'),
    createMessage(call('a'), call('b')),
    result('a', '1'),
    result('b', '2'),
  )
  t.equal(restoreSampled(messages, createTurn(call('a'), call('b')), createIds()), messages)
  t.equal(restoreSampled(messages, undefined, createIds()), messages)
  t.equal(restoreSampled(messages, undefined, createIds({ other: 'x' })), messages)
})

t.test('tool calls and results have the ids of the model, if it gave any', async (t) => {
  for (const own of [{ a: 'run:0' }, { b: 'run:1' }, { a: 'run:0', b: 'run:1' }] as Record<
    string,
    string
  >[]) {
    // A session's ids stay the same, and the restored message is cached.
    const messages = createMessages(
      user('hi'),
      createMessage(call('a'), call('b')),
      result('a', '1'),
      result('b', '2'),
    )
    const [a, b] = [own.a ?? 'a', own.b ?? 'b']
    const expected = [user('hi'), createMessage(call(a), call(b)), result(a, '1'), result(b, '2')]
    t.match(getValues(restoreSampled(messages, createTurn(call('a'), call('b')), createIds(own))), expected)
    const shown = restoreSampled(messages, undefined, createIds(own))
    t.match(getValues(shown), expected, 'also in an echo without a turn')
    t.equal(shown[0], messages[0], 'other messages are the same objects')
    if (own.a === undefined) t.equal(shown[2], messages[2])
  }
})

t.test("sampled messages replace the agent's versions", async (t) => {
  const turn = createTurn(call('a', '{"x":1}'), call('b', '{"x":1}'))
  for (const echo of [
    createMessage(call('a', '{"x":1.0}'), call('b', '{"y":2}')),
    createMessage(call('b', '{"x":1}'), call('a', '{"x":1}')),
    createMessage(call('a', '{"x":1}')),
    { role: 'assistant', content: 'Go' },
  ]) {
    const [, shown] = restoreSampled(createMessages(user('hi'), echo), turn, createIds())
    t.match(shown!.value, createMessage(call('a', '{"x":1}'), call('b', '{"x":1}')), JSON.stringify(echo))
    t.notOk('reasoning_content' in shown!.value)
  }
})

t.test('equal tool calls keep the order in which they were sampled', async (t) => {
  const [a, b, c] = [call('a'), call('b'), call('c')]
  const [, shown] = restoreSampled(
    createMessages(user('hi'), createMessage(a, c, b)),
    createTurn(a, b, c),
    createIds(),
  )
  t.match(shown!.value, createMessage(a, b, c))
})

t.test('results have the order of the sampled tool calls, if all are present', async (t) => {
  const turn = createTurn(call('a'), call('b'))
  const show = (...results: object[]) =>
    getValues(
      restoreSampled(
        createMessages(user('hi'), createMessage(call('a'), call('b')), ...results),
        turn,
        createIds(),
      ),
    ).slice(2)
  const [a, b, c] = [result('a', '1'), result('b', '2'), result('c', '3')]
  t.match(show(b, a), [a, b])
  t.match(show(b, a, user('on'), b), [a, b, user('on'), b])
  for (const results of [[b], [b, b], [b, c], [b, a, c], [b, user('on'), a]])
    t.match(show(...results), results)
  const one = restoreSampled(
    createMessages(user('hi'), createMessage(call('a')), b, a),
    createTurn(call('a')),
    createIds(),
  )
  t.match(getValues(one).slice(2), [b, a], 'results of one tool call keep theirs')
})
