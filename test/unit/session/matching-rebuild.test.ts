import t from 'tap'
import type { MatchIndex } from '../../../src/proxy/session/matching/match-index.ts'
import { type MatchableRecord, rebuildIndex } from '../../../src/proxy/session/matching/rebuild-index.ts'
import { conversationOf } from '../../helpers/messages.ts'

interface Recorded extends MatchableRecord {
  turnId: string
}

type Message = { role: 'user' | 'assistant'; content: string }

const user = (content: string): Message => ({ role: 'user', content })
const assistant = (content: string): Message => ({ role: 'assistant', content })

/** A turn on record that took from one time to another. */
function turn(turnId: string, messages: Message[], answer: string, fromMs: number, toMs: number): Recorded {
  return {
    turnId,
    status: 'completed',
    startedAtMs: fromMs,
    endedAtMs: toMs,
    requestMessages: messages.map((message) => JSON.stringify(message)),
    tools: null,
    completionText: answer,
    reasoning: null,
    toolCalls: '[]',
  }
}

const rebuild = (records: Recorded[]) => rebuildIndex(records, ({ turnId }) => turnId)

function found(index: MatchIndex<string>, messages: Message[], tools: [] | null = null): string {
  const { parent, sharedMessages } = index.match(conversationOf(messages, tools))
  return `${parent?.turn ?? 'none'}:${sharedMessages}`
}

const second = [user('hi'), assistant('hello'), user('more')]

t.test('a session read from the record is continued where it stood', async (t) => {
  const index = await rebuild([
    turn('t1', [user('hi')], ' hello', 0, 10),
    turn('t2', second, 'there', 10, 20),
    turn('sub', [user('task')], 'done', 12, 18),
  ])
  t.equal(found(index, second), 't1:2')
  t.equal(found(index, [...second, assistant('there'), user('x')]), 't2:4')
  t.equal(found(index, [user('task'), assistant('done'), user('x')]), 'sub:2')
})

t.test('reasoning, tool calls and tools are read from the record', async (t) => {
  const tools = [{ type: 'function' as const, function: { name: 'run' } }]
  const calls = [{ id: 'a', type: 'function' as const, function: { name: 'run', arguments: '{"n": 1}' } }]
  const index = await rebuild([
    {
      ...turn('t1', [user('hi')], '', 0, 10),
      completionText: null,
      reasoning: 'think',
      toolCalls: JSON.stringify(calls),
      tools: JSON.stringify(tools),
    },
  ])
  const echo = { role: 'assistant' as const, content: null, tool_calls: calls }
  const parentOf = (message: typeof echo & { reasoning_content?: string }, withTools = true) =>
    index.match(conversationOf([user('hi'), message], withTools ? tools : null)).parent?.turn
  t.equal(parentOf(echo), 't1')
  t.equal(parentOf({ ...echo, reasoning_content: 'think' }), 't1')
  t.equal(parentOf({ ...echo, reasoning_content: 'think twice' }), undefined)
  t.equal(parentOf({ ...echo, tool_calls: [] }), undefined)
  t.equal(parentOf(echo, false), undefined)
})

t.test('turns that were not completed, that are no chat or that are not wanted are no parents', async (t) => {
  const records = [
    { ...turn('failed', [user('a')], 'hello', 0, 1), status: 'failed' as const },
    { ...turn('aborted', [user('a')], 'hello', 0, 1), status: 'aborted' as const },
    { ...turn('open', [user('a')], 'hello', 0, 1), status: 'open' as const, endedAtMs: null },
    turn('completion', [], 'hello', 0, 1),
    turn('unwanted', [user('a')], 'hello', 0, 1),
  ]
  const index = await rebuildIndex(records, ({ turnId }) => (turnId === 'unwanted' ? undefined : turnId))
  t.equal(found(index, [user('a'), assistant('hello')]), 'none:0')
  t.equal(found(index, [assistant('hello')]), 'none:0')
})

t.test('a call is matched against the turns that had ended when it came', async (t) => {
  const twins = (endOfSecond: number) => [
    turn('first', [user('hi')], 'hello', 0, 10),
    turn('second', [user('hi')], 'hello', 0, endOfSecond),
    turn('next', second, 'there', 20, 30),
  ]
  const other = second.with(2, user('else'))
  t.equal(found(await rebuild(twins(20)), other), 'first:2', 'the second sample has been continued')
  t.equal(found(await rebuild(twins(21)), other), 'second:2', 'it came too late to be continued')
})
