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
const calling = (...calls: ToolCall[]): ChatMessage => ({
  role: 'assistant',
  content: null,
  tool_calls: calls,
})
const result = (id: string, content: string): ChatMessage => ({ role: 'tool', tool_call_id: id, content })

class Talk {
  readonly index: PrefixIndex<string>
  readonly tree = new MessageTree()

  constructor(edited?: ToolCallRewritePolicy) {
    this.index = new PrefixIndex(edited)
  }

  match(...messages: ChatMessage[]) {
    return this.index.match(createConversation(messages, null, this.tree))
  }

  turn(name: string, messages: ChatMessage[], response: Partial<CompletionMessage>): void {
    const completion = { content: null, reasoning: null, toolCalls: [], ...response }
    this.index.add(this.match(...messages), completion, name)
  }

  found(...messages: ChatMessage[]): string | undefined {
    return this.match(...messages).parent?.turn
  }
}

/** The pair with ids in place of their names. */
function getPair({ sampled, echoed }: Pair, getId: (name: string) => string) {
  const named = new Map(sampled.calls.map(({ id }) => [id, getId(id)]))
  const calls = sampled.calls.map(({ id, name, arguments: args }) => call(named.get(id)!, args, name))
  const echo = structuredClone(echoed)
  for (const one of echo.tool_calls ?? []) one.id = named.get(one.id) ?? one.id
  return { completion: { content: sampled.content, reasoning: sampled.reasoning, toolCalls: calls }, echo }
}

function isJoined(pair: Pair, edited: ToolCallRewritePolicy, getId: (name: string) => string): boolean {
  const { completion, echo } = getPair(pair, getId)
  const talk = new Talk(edited)
  talk.turn('sampled', [user('task')], completion)
  return talk.found(user('task'), echo, user('go on')) === 'sampled'
}

t.test('echoes of tool calls are matched to the sampled ones by the ids of the calls', async (t) => {
  for (const [index, pair] of PAIRS.entries()) {
    const title = `${index}: ${pair.agent}: ${pair.rules.join(', ')}`
    const drawn = () => ids.create(undefined)
    t.equal(isJoined(pair, 'auto', drawn), pair.is === 'same', title)
    t.equal(isJoined(pair, 'keep', drawn), pair.is === 'same', `${title} (keep)`)
    t.equal(isJoined(pair, 'branch', drawn), pair.was === 'same', `${title} (branch)`)
    t.equal(isJoined(pair, 'auto', String), pair.was === 'same', `${title} (other ids)`)
    const short = () => ids.create('abc123XYZ')
    t.equal(isJoined(pair, 'auto', short), pair.is === 'same', `${title} (ids of nine)`)
  }
  t.ok(PAIRS.filter(({ was, is }) => was === 'other' && is === 'same').length > 30)
})

t.test('another set of tool calls, or another history, is another message', async (t) => {
  const [a, b, c] = [ids.create(undefined), ids.create(undefined), ids.create(undefined)]
  const talk = new Talk()
  talk.turn('two', [user('task')], { toolCalls: [call(a!, '{"x":1}'), call(b!, '{"x":2}')] })
  const go = user('go on')
  t.equal(talk.found(user('task'), calling(call(b!, '{}'), call(a!, '{}')), go), 'two', 'in any order')
  t.equal(talk.found(user('task'), calling(call(a!, '{}')), go), undefined, 'a part of it')
  const more = calling(call(a!, '{}'), call(b!, '{}'), call(c!, '{}'))
  t.equal(talk.found(user('task'), more, go), undefined, 'more than it')
  t.equal(talk.found(user('task'), calling(call(a!, '{}'), call(a!, '{}')), go), undefined, 'one twice')
  t.equal(
    talk.found(user('other'), calling(call(a!, '{}'), call(b!, '{}')), go),
    undefined,
    'on another branch',
  )
  t.equal(talk.found(calling(call(a!, '{}'), call(b!, '{}')), go), undefined, 'after a compaction')
})

t.test('among equal completions, the ids decide which one continues', async (t) => {
  const [a, b] = [ids.create(undefined), ids.create(undefined)]
  const talk = new Talk()
  talk.turn('first', [user('task')], { toolCalls: [call(a!, '{"x":1}')] })
  talk.turn('second', [user('task')], { toolCalls: [call(b!, '{"x":1}')] })
  t.equal(talk.found(user('task'), calling(call(a!, '{"x":1,"y":false}')), user('go')), 'first')
  t.equal(talk.found(user('task'), calling(call(b!, '{"x":1,"y":false}')), user('go')), 'second')
})

t.test('results belong to the ids that they name, for any order of the tool calls', async (t) => {
  const [a, b] = [ids.create(undefined), ids.create(undefined)]
  const calls = [call(a!, '{"x":1}'), call(b!, '{"x":2}')]
  const talk = new Talk()
  talk.turn('calls', [user('task')], { toolCalls: calls })
  const results = [result(a!, 'one'), result(b!, 'two')]
  talk.turn('results', [user('task'), calling(...calls), ...results], { content: 'done' })
  const done: ChatMessage = { role: 'assistant', content: 'done' }
  const turned = calling(...calls.toReversed())
  t.equal(talk.found(user('task'), turned, ...results, done, user('more')), 'results')
  const swapped = [result(b!, 'one'), result(a!, 'two')]
  t.equal(talk.found(user('task'), turned, ...swapped, done, user('more')), 'calls', 'other results')
})

t.test('intentional cuts make another message, but removed white space and quotes do not', async (t) => {
  const id = ids.create(undefined)
  const text = 'word '.repeat(800)
  const sampled = JSON.stringify({ path: 'a.py', content: text })
  const of = (edited: ToolCallRewritePolicy, args: string) => {
    const talk = new Talk(edited)
    talk.turn('written', [user('task')], { toolCalls: [call(id, sampled)] })
    const { parent, edited: cut } = talk.match(user('task'), calling(call(id, args)), user('go on'))
    return `${parent?.turn} ${cut?.turn}`
  }
  const pruned = JSON.stringify({ path: 'a.py', content: `${text.slice(0, 20)}...(argument truncated)` })
  t.equal(of('auto', pruned), 'undefined written')
  t.equal(of('branch', pruned), 'undefined written')
  t.equal(of('keep', pruned), 'written undefined')
  const bare = JSON.stringify({ path: 'a.py', content: text.replaceAll(' ', '') })
  t.equal(of('auto', bare), 'written undefined')
  t.equal(of('branch', bare), 'undefined written')
  t.equal(of('branch', sampled), 'written undefined')
  const shorter = (cut: number) =>
    JSON.stringify({ path: 'a.py', content: text.replaceAll(' ', '').slice(cut) })
  t.equal(of('auto', shorter(1_000)), 'written undefined')
  t.equal(of('auto', shorter(1_001)), 'undefined written')
})

t.test('a branch after a pruned tool call is continued as it was sent', async (t) => {
  const id = ids.create(undefined)
  const talk = new Talk()
  const pruned = calling(call(id, '{"content":"(gone)"}'))
  talk.turn('written', [user('task')], {
    toolCalls: [call(id, JSON.stringify({ content: 'x'.repeat(3_000) }))],
  })
  talk.turn('pruned', [user('task'), pruned, result(id, 'ok')], { content: 'Good.' })
  const good: ChatMessage = { role: 'assistant', content: 'Good.' }
  t.equal(talk.found(user('task'), pruned, result(id, 'ok'), good, user('more')), 'pruned')
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
  const known = new ToolCallIds()
  const [kimi, vllm, none] = [
    known.create('functions.f:0'),
    known.create('chatcmpl-tool-0a'),
    known.create(''),
  ]
  known.learn({ [kimi]: 'functions.f:0', [vllm]: 'chatcmpl-tool-0a', [none]: null })
  t.equal(known.findOriginal(kimi), 'functions.f:0')
  t.equal(known.findOriginal(vllm), undefined)
  t.equal(known.findOriginal(none), undefined)
  t.equal(known.findOriginal('functions.f:0'), undefined, 'that this session did not generate')
  t.equal(known.isStray(kimi), false)
  t.equal(known.isStray(new ToolCallIds().create('')), true)
  t.equal(known.isStray('functions.f:0'), false)
})
