import t from 'tap'
import type { PrefixIndex } from '../../../../src/proxy/session/matching/prefix-index.ts'
import { type PrefixIndexFields, rebuildIndex } from '../../../../src/proxy/session/matching/rebuild-index.ts'
import { addMessageTexts, createConversation } from '../../../helpers/messages.ts'

type Message = { role: 'user' | 'assistant'; content: string }

const user = (content: string): Message => ({ role: 'user', content })
const assistant = (content: string): Message => ({ role: 'assistant', content })

/**
 * Creates a recorded turn.
 * @param prompt how its prompt came about
 */
function turn(turnId: string, messages: Message[], response: string, prompt?: object): PrefixIndexFields {
  return {
    turnId,
    status: 'completed',
    annotations: JSON.stringify({ prompt }),
    lastMessage: addMessageTexts(messages.map((message) => JSON.stringify(message))),
    tools: null,
    completionText: response,
    reasoning: null,
    toolCalls: '[]',
  }
}

const rebuild = (records: PrefixIndexFields[]) => rebuildIndex(records, ({ turnId }) => turnId)

function describeMatch(index: PrefixIndex<string>, messages: Message[], tools: [] | null = null): string {
  const { parent, sharedMessages } = index.match(createConversation(messages, tools))
  return `${parent?.turn ?? 'none'}:${sharedMessages}`
}

const second = [user('hi'), assistant('hello'), user('more')]

t.test('a session read from the store is continued at its last state', async (t) => {
  const index = await rebuild([
    turn('t1', [user('hi')], ' hello'),
    turn('t2', second, 'there'),
    turn('sub', [user('task')], 'done'),
  ])
  t.equal(describeMatch(index, second), 't1:2')
  t.equal(describeMatch(index, [...second, assistant('there'), user('x')]), 't2:4')
  t.equal(describeMatch(index, [user('task'), assistant('done'), user('x')]), 'sub:2')
})

t.test('reasoning, tool calls and tools are read from the store', async (t) => {
  const tools = [{ type: 'function' as const, function: { name: 'run' } }]
  const calls = [{ id: 'a', type: 'function' as const, function: { name: 'run', arguments: '{"n": 1}' } }]
  const index = await rebuild([
    {
      ...turn('t1', [user('hi')], ''),
      completionText: null,
      reasoning: 'think',
      toolCalls: JSON.stringify(calls),
      tools: JSON.stringify(tools),
    },
  ])
  const echo = { role: 'assistant' as const, content: null, tool_calls: calls }
  const getParent = (message: typeof echo & { reasoning_content?: string }, withTools = true) =>
    index.match(createConversation([user('hi'), message], withTools ? tools : null)).parent?.turn
  t.equal(getParent(echo), 't1')
  t.equal(getParent({ ...echo, reasoning_content: 'think' }), 't1')
  t.equal(getParent({ ...echo, reasoning_content: 'think twice' }), undefined)
  t.equal(getParent({ ...echo, tool_calls: [] }), undefined)
  t.equal(getParent(echo, false), undefined)
})

t.test('turns that were not completed, are not chat or are not wanted are no parents', async (t) => {
  const records = [
    { ...turn('failed', [user('a')], 'hello'), status: 'failed' as const },
    { ...turn('aborted', [user('a')], 'hello'), status: 'aborted' as const },
    { ...turn('open', [user('a')], 'hello'), status: 'open' as const },
    turn('completion', [], 'hello'),
    turn('unwanted', [user('a')], 'hello'),
  ]
  const index = await rebuildIndex(records, ({ turnId }) => (turnId === 'unwanted' ? undefined : turnId))
  t.equal(describeMatch(index, [user('a'), assistant('hello')]), 'none:0')
  t.equal(describeMatch(index, [assistant('hello')]), 'none:0')
})

t.test('turns have the same parents as during the session, for any timestamps', async (t) => {
  const twins = (prompt?: object) => [
    turn('first', [user('hi')], 'hello', { reason: 'first' }),
    turn('second', [user('hi')], 'hello', { reason: 'branched' }),
    turn('next', second, 'there', prompt),
  ]
  const other = second.with(2, user('else'))
  const matchOther = async (prompt?: object) => describeMatch(await rebuild(twins(prompt)), other)
  t.equal(await matchOther({ reason: 'extended', from: 'first' }), 'second:2', 'the first has been continued')
  t.equal(await matchOther({ reason: 'extended', from: 'second' }), 'first:2')
  t.equal(await matchOther(), 'first:2', 'not recorded: the latest turn without a continuation is the parent')
  t.equal(await matchOther({ reason: 'branched' }), 'second:2', 'neither had ended when the request arrived')
  t.equal(await matchOther({ reason: 'extended', from: 'lost' }), 'first:2', 'a turn that does not exist')
  const reason = 'think_dropped'
  t.equal(await matchOther({ reason, parent: 'first' }), 'second:2', 'its tokens were rendered from scratch')
  t.equal(await matchOther({ reason, parent: null }), 'second:2', 'it continued neither')
  t.equal(await matchOther({ reason: 'extended', from: 'second', parent: 'first' }), 'second:2')
})

t.test('recorded parents are not matched again', async (t) => {
  const index = await rebuild([
    turn('t1', [user('hi')], 'hello', { reason: 'first' }),
    turn('t2', [user('other'), assistant('bye'), user('x')], 'there', { reason: 'broken', from: 't1' }),
  ])
  t.equal(
    describeMatch(index, [user('hi'), assistant('hello'), user('x'), assistant('there'), user('y')]),
    't2:4',
  )
})
