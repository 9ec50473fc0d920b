/**
 * Echoes of tool calls by real agents (echoes.jsonl: one pair for each observed form, from 2,494 turns of 48
 * combinations of agent and dialect in November 2026), and possible forms of other agents.
 */
import { readFileSync } from 'node:fs'
import t from 'tap'
import { MessageTree } from '../../../../src/protocol/canonical/conversation.ts'
import type { ChatMessage, ToolCall } from '../../../../src/protocol/canonical/messages.ts'
import { type CompletionMessage, PrefixIndex } from '../../../../src/proxy/session/matching/prefix-index.ts'
import { isProxyToolCallId, ToolCallIds } from '../../../../src/proxy/session/matching/tool-call-ids.ts'
import type { ToolCallRewritePolicy } from '../../../../src/proxy/store/port/turn-store.ts'
import { createConversation } from '../../../helpers/messages.ts'

interface Pair {
  agent: string
  rules: string[]
  /** By the content of the messages, without their ids. */
  was: 'same' | 'other'
  is: 'same' | 'other'
  sampled: {
    content: string | null
    reasoning: string | null
    calls: { id: string; name: string; arguments: string }[]
  }
  echoed: ChatMessage & { tool_calls?: { id: string }[] }
}

const PAIRS = readFileSync(new URL('echoes.jsonl', import.meta.url), 'utf8')
  .trim()
  .split('\n')
  .map((line) => JSON.parse(line) as Pair)

const ids = new ToolCallIds()
const user = (content: string): ChatMessage => ({ role: 'user', content })
const call = (id: string, args: string, name = 'run'): ToolCall => ({
  id,
  type: 'function',
  function: { name, arguments: args },
})
const createToolCallMessage = (...calls: ToolCall[]): ChatMessage => ({
  role: 'assistant',
  content: null,
  tool_calls: calls,
})
const result = (id: string, content: string): ChatMessage => ({ role: 'tool', tool_call_id: id, content })

class Session {
  readonly index: PrefixIndex<string>
  readonly tree = new MessageTree()

  constructor(edited?: ToolCallRewritePolicy) {
    this.index = new PrefixIndex(edited)
  }

  match(...messages: ChatMessage[]) {
    return this.index.match(createConversation(messages, null, this.tree))
  }

  addTurn(name: string, messages: ChatMessage[], response: Partial<CompletionMessage>): void {
    const completion = { content: null, reasoning: null, toolCalls: [], ...response }
    this.index.add(this.match(...messages), completion, name)
  }

  findParent(...messages: ChatMessage[]): string | undefined {
    return this.match(...messages).parent?.turn
  }
}

/** Returns the completion and the echo of a pair, with ids in place of the names. */
function createPair({ sampled, echoed }: Pair, getId: (name: string) => string) {
  const named = new Map(sampled.calls.map(({ id }) => [id, getId(id)]))
  const calls = sampled.calls.map(({ id, name, arguments: args }) => call(named.get(id)!, args, name))
  const echo = structuredClone(echoed)
  for (const one of echo.tool_calls ?? []) one.id = named.get(one.id) ?? one.id
  return { completion: { content: sampled.content, reasoning: sampled.reasoning, toolCalls: calls }, echo }
}

function isContinued(pair: Pair, edited: ToolCallRewritePolicy, getId: (name: string) => string): boolean {
  const { completion, echo } = createPair(pair, getId)
  const session = new Session(edited)
  session.addTurn('sampled', [user('task')], completion)
  return session.findParent(user('task'), echo, user('go on')) === 'sampled'
}

t.test('echoes of tool calls are matched to the sampled ones by the ids of the calls', async (t) => {
  for (const [index, pair] of PAIRS.entries()) {
    const title = `${index}: ${pair.agent}: ${pair.rules.join(', ')}`
    const createId = () => ids.create(undefined)
    t.equal(isContinued(pair, 'auto', createId), pair.is === 'same', title)
    t.equal(isContinued(pair, 'keep', createId), pair.is === 'same', `${title} (keep)`)
    t.equal(isContinued(pair, 'branch', createId), pair.was === 'same', `${title} (branch)`)
    t.equal(isContinued(pair, 'auto', String), pair.was === 'same', `${title} (other ids)`)
    const short = () => ids.create('abc123XYZ')
    t.equal(isContinued(pair, 'auto', short), pair.is === 'same', `${title} (ids of nine)`)
  }
  t.ok(PAIRS.filter(({ was, is }) => was === 'other' && is === 'same').length > 30)
})

t.test('another set of tool calls, or another history, is another message', async (t) => {
  const [a, b, c] = [ids.create(undefined), ids.create(undefined), ids.create(undefined)]
  const session = new Session()
  session.addTurn('two', [user('task')], { toolCalls: [call(a!, '{"x":1}'), call(b!, '{"x":2}')] })
  const go = user('go on')
  t.equal(
    session.findParent(user('task'), createToolCallMessage(call(b!, '{}'), call(a!, '{}')), go),
    'two',
    'in any order',
  )
  t.equal(
    session.findParent(user('task'), createToolCallMessage(call(a!, '{}')), go),
    undefined,
    'a part of it',
  )
  const more = createToolCallMessage(call(a!, '{}'), call(b!, '{}'), call(c!, '{}'))
  t.equal(session.findParent(user('task'), more, go), undefined, 'more than it')
  t.equal(
    session.findParent(user('task'), createToolCallMessage(call(a!, '{}'), call(a!, '{}')), go),
    undefined,
    'one twice',
  )
  t.equal(
    session.findParent(user('other'), createToolCallMessage(call(a!, '{}'), call(b!, '{}')), go),
    undefined,
    'on another branch',
  )
  t.equal(
    session.findParent(createToolCallMessage(call(a!, '{}'), call(b!, '{}')), go),
    undefined,
    'after a compaction',
  )
})

t.test('among equal completions, the ids decide which one continues', async (t) => {
  const [a, b] = [ids.create(undefined), ids.create(undefined)]
  const session = new Session()
  session.addTurn('first', [user('task')], { toolCalls: [call(a!, '{"x":1}')] })
  session.addTurn('second', [user('task')], { toolCalls: [call(b!, '{"x":1}')] })
  t.equal(
    session.findParent(user('task'), createToolCallMessage(call(a!, '{"x":1,"y":false}')), user('go')),
    'first',
  )
  t.equal(
    session.findParent(user('task'), createToolCallMessage(call(b!, '{"x":1,"y":false}')), user('go')),
    'second',
  )
})

t.test('results belong to the ids that they name, for any order of the tool calls', async (t) => {
  const [a, b] = [ids.create(undefined), ids.create(undefined)]
  const calls = [call(a!, '{"x":1}'), call(b!, '{"x":2}')]
  const session = new Session()
  session.addTurn('calls', [user('task')], { toolCalls: calls })
  const results = [result(a!, 'one'), result(b!, 'two')]
  session.addTurn('results', [user('task'), createToolCallMessage(...calls), ...results], { content: 'done' })
  const done: ChatMessage = { role: 'assistant', content: 'done' }
  const turned = createToolCallMessage(...calls.toReversed())
  t.equal(session.findParent(user('task'), turned, ...results, done, user('more')), 'results')
  const swapped = [result(b!, 'one'), result(a!, 'two')]
  t.equal(session.findParent(user('task'), turned, ...swapped, done, user('more')), 'calls', 'other results')
})

t.test('intentional cuts make another message, but removed white space and quotes do not', async (t) => {
  const id = ids.create(undefined)
  const text = 'word '.repeat(800)
  const sampled = JSON.stringify({ path: 'a.py', content: text })
  const describeMatch = (edited: ToolCallRewritePolicy, args: string) => {
    const session = new Session(edited)
    session.addTurn('written', [user('task')], { toolCalls: [call(id, sampled)] })
    const { parent, edited: cut } = session.match(
      user('task'),
      createToolCallMessage(call(id, args)),
      user('go on'),
    )
    return `${parent?.turn} ${cut?.turn}`
  }
  const pruned = JSON.stringify({ path: 'a.py', content: `${text.slice(0, 20)}...(argument truncated)` })
  t.equal(describeMatch('auto', pruned), 'undefined written')
  t.equal(describeMatch('branch', pruned), 'undefined written')
  t.equal(describeMatch('keep', pruned), 'written undefined')
  const bare = JSON.stringify({ path: 'a.py', content: text.replaceAll(' ', '') })
  t.equal(describeMatch('auto', bare), 'written undefined')
  t.equal(describeMatch('branch', bare), 'undefined written')
  t.equal(describeMatch('branch', sampled), 'written undefined')
  const shorter = (cut: number) =>
    JSON.stringify({ path: 'a.py', content: text.replaceAll(' ', '').slice(cut) })
  t.equal(describeMatch('auto', shorter(1_000)), 'written undefined')
  t.equal(describeMatch('auto', shorter(1_001)), 'undefined written')
})

t.test('a branch after a pruned tool call is continued as it was sent', async (t) => {
  const id = ids.create(undefined)
  const session = new Session()
  const pruned = createToolCallMessage(call(id, '{"content":"(gone)"}'))
  session.addTurn('written', [user('task')], {
    toolCalls: [call(id, JSON.stringify({ content: 'x'.repeat(3_000) }))],
  })
  session.addTurn('pruned', [user('task'), pruned, result(id, 'ok')], { content: 'Good.' })
  const good: ChatMessage = { role: 'assistant', content: 'Good.' }
  t.equal(session.findParent(user('task'), pruned, result(id, 'ok'), good, user('more')), 'pruned')
})

t.test('an id of the proxy is distinguished from all others', async (t) => {
  for (let count = 0; count < 500; count += 1) {
    const [long, short] = [ids.create('functions.bash:0'), ids.create('a1B2c3D4e')]
    t.match(long, /^call_[0-9a-f]{24}$/)
    t.match(short, /^[0-9A-Za-z]{9}$/)
    t.ok(isProxyToolCallId(long) && isProxyToolCallId(short))
    const other = long.replace(/.$/, (last) => (last === '0' ? '1' : '0'))
    t.notOk(isProxyToolCallId(other) || isProxyToolCallId(`${long}_2`))
  }
  t.notOk(isProxyToolCallId('call_8b00a724f769c5bafe87218b'), 'one of an earlier version')
  t.notOk(isProxyToolCallId('functions.bash:0'))
})

t.test('the model sees the id that it gave, and none that its engine made up', async (t) => {
  const toolCallIds = new ToolCallIds()
  const [kimi, vllm, none] = [
    toolCallIds.create('functions.f:0'),
    toolCallIds.create('chatcmpl-tool-0a'),
    toolCallIds.create(''),
  ]
  toolCallIds.learn({ [kimi]: 'functions.f:0', [vllm]: 'chatcmpl-tool-0a', [none]: null })
  t.equal(toolCallIds.findOriginal(kimi), 'functions.f:0')
  t.equal(toolCallIds.findOriginal(vllm), undefined)
  t.equal(toolCallIds.findOriginal(none), undefined)
  t.equal(toolCallIds.findOriginal('functions.f:0'), undefined, 'this session did not generate it')
  t.equal(toolCallIds.isStray(kimi), false)
  t.equal(toolCallIds.isStray(new ToolCallIds().create('')), true)
  t.equal(toolCallIds.isStray('functions.f:0'), false)
})
