import t from 'tap'
import { getMessagesBetween, MessageTree } from '../../../../src/protocol/canonical/conversation.ts'
import type { ChatMessage, Tool } from '../../../../src/protocol/canonical/messages.ts'
import {
  getMessageKey,
  readConversation,
  readConversationInSlices,
} from '../../../../src/proxy/session/matching/conversation.ts'
import type { MessageKey } from '../../../../src/proxy/session/matching/message-key.ts'
import { type CompletionMessage, PrefixIndex } from '../../../../src/proxy/session/matching/prefix-index.ts'
import { createConversation } from '../../../helpers/messages.ts'

type Loose = Record<string, unknown>
type Calls = CompletionMessage['toolCalls']

const asMessages = (messages: Loose[]) => messages as unknown as ChatMessage[]
const user = (content: unknown, fields: Loose = {}): Loose => ({ role: 'user', content, ...fields })
const system = (content: string): Loose => ({ role: 'system', content })
const assistant = (content: unknown, fields: Loose = {}): Loose => ({ role: 'assistant', content, ...fields })
const result = (id: unknown, content: string): Loose => ({ role: 'tool', tool_call_id: id, content })
const call = (id: string, args: unknown, name = 'run'): Loose => ({
  id,
  type: 'function',
  function: { name, arguments: args },
})
const tool = (name: string): Tool => ({
  type: 'function',
  function: { name, parameters: { type: 'object' } },
})

/** A session in which each request is completed immediately, and turns have names. */
class Session {
  readonly index = new PrefixIndex<string>()
  readonly tree = new MessageTree()

  match(messages: Loose[], tools: Tool[] | null = null) {
    return this.index.match(createConversation(asMessages(messages), tools, this.tree))
  }

  addTurn(
    name: string,
    messages: Loose[],
    response: Partial<CompletionMessage>,
    tools: Tool[] | null = null,
  ) {
    const completion = { content: null, reasoning: null, toolCalls: [], ...response }
    return this.index.add(this.match(messages, tools), completion, name)
  }

  /** Returns the parent and the number of shared messages, as `t1:2`. */
  describeMatch(messages: Loose[], tools: Tool[] | null = null): string {
    const { parent, sharedMessages } = this.match(messages, tools)
    return parent === undefined ? `none:${sharedMessages}` : `${parent.turn}:${sharedMessages}`
  }
}

const RICH_CALLS = [call('call_1', '{"path": "/tmp", "deep": {"b": 1, "a": [1.0]}}'), call('call_2', '')]
const RICH: Partial<CompletionMessage> = {
  content: '\nI will look. ',
  reasoning: ' First, look.\n',
  toolCalls: RICH_CALLS as unknown as Calls,
}

/** Returns whether the index accepts this echo of the rich completion. */
function isEcho(echo: Loose): boolean {
  const session = new Session()
  session.addTurn('t1', [user('hi')], RICH)
  return session.describeMatch([user('hi'), echo, user('go on')]) === 't1:2'
}

t.test('a first request, and one to an empty index, has no parent', async (t) => {
  const session = new Session()
  t.equal(session.describeMatch([user('hi')]), 'none:0')
  session.addTurn('t1', [user('hi')], { content: 'hello' })
  t.equal(session.describeMatch([user('other')]), 'none:0')
  t.equal(session.describeMatch([user('hi')]), 'none:0', 'the prompt alone continues nothing')
})

t.test('a request continues the deepest turn whose messages and completion it extends', async (t) => {
  const session = new Session()
  const first = [user('hi')]
  const second = [...first, assistant('hello'), user('more')]
  const third = [...second, assistant('there'), user('and more'), user('please')]
  session.addTurn('t1', first, { content: 'hello' })
  t.equal(session.describeMatch(second), 't1:2')
  session.addTurn('t2', second, { content: 'there' })
  t.equal(session.describeMatch(third), 't2:4')
  t.equal(session.describeMatch(second), 't1:2', 'a retry has the parent of the original attempt')
  t.equal(session.describeMatch(second.slice(0, 2)), 't1:2', 'a request may end with the completion')
})

t.test('an echo is the same message if it differs only in details that clients change', async (t) => {
  const echo = assistant('\nI will look. ', { reasoning_content: ' First, look.\n', tool_calls: RICH_CALLS })
  const without = (field: string) =>
    Object.fromEntries(Object.entries(echo).filter(([name]) => name !== field))
  const withCalls = (...calls: Loose[]) => ({ ...echo, tool_calls: calls })
  const tidied: [string, Loose][] = [
    ['nothing', echo],
    ['white space at the ends', { ...echo, content: 'I will look.' }],
    ['more white space at the ends', { ...echo, content: '  \n\nI will look.\t' }],
    ['null optional fields', { ...echo, name: null, refusal: null, audio: null, function_call: null }],
    ['empty optional fields', { ...echo, name: '', refusal: '', annotations: [], function_call: {} }],
    ['content as a part', { ...echo, content: [{ type: 'text', text: '\nI will look. ' }] }],
    [
      'content as several parts',
      {
        ...echo,
        content: [
          { type: 'text', text: 'I will ' },
          { type: 'text', text: 'look.' },
        ],
      },
    ],
    ['tool-call ids', withCalls(call('x', RICH_CALLS[0]!.function && args(0)), call('y', args(1)))],
    ['spacing of arguments', withCalls(call('1', '{"path":"/tmp","deep":{"b":1,"a":[1]}}'), call('2', '{}'))],
    [
      'key order of arguments',
      withCalls(call('1', '{"deep":{"a":[1.0],"b":1},"path":"/tmp"}'), call('2', null)),
    ],
    ['arguments as an object', withCalls(call('1', { deep: { a: [1], b: 1 }, path: '/tmp' }), call('2', {}))],
    [
      'the index that streams give a tool call',
      withCalls({ ...RICH_CALLS[0], index: 0 }, { ...RICH_CALLS[1], index: 1 }),
    ],
    ['tool calls without a type', withCalls(...RICH_CALLS.map(({ type: _, ...rest }) => rest))],
    ['reasoning left out', without('reasoning_content')],
    ['reasoning under another name', { ...without('reasoning_content'), reasoning: 'First, look.' }],
    ['reasoning under both names', { ...echo, reasoning: 'First, look.' }],
    ['reasoning under one of both names', { ...echo, reasoning_content: '', reasoning: 'First, look.' }],
    ['empty reasoning', { ...echo, reasoning_content: '' }],
    ['token ids from the proxy', { ...echo, provider_specific_fields: { token_ids: [1, 2] } }],
    ['a refusal that no template shows', { ...echo, refusal: 'no' }],
    ['a cache marker', { ...echo, cache_control: { type: 'ephemeral' } }],
  ]
  for (const [difference, message] of tidied) t.ok(isEcho(message), difference)

  function args(index: number): unknown {
    return (RICH_CALLS[index]!.function as Loose).arguments
  }
})

t.test('an edited echo is another message', async (t) => {
  const echo = assistant('I will look.', { reasoning_content: 'First, look.', tool_calls: RICH_CALLS })
  const [first, second] = RICH_CALLS as [Loose, Loose]
  const edited: [string, Loose][] = [
    ['text', { ...echo, content: 'I will not look.' }],
    ['white space within the text', { ...echo, content: 'I will  look.' }],
    ['text left out', { ...echo, content: null }],
    [
      'a part that is no text',
      { ...echo, content: [{ type: 'text', text: 'I will look.' }, { type: 'image_url' }] },
    ],
    ['the role', { ...echo, role: 'user' }],
    ['a name', { ...echo, name: 'planner' }],
    ['reasoning', { ...echo, reasoning_content: 'First, think.' }],
    ...['reasoning', 'thinking'].map((name): [string, Loose] => [
      `reasoning as ${name}`,
      { ...echo, reasoning_content: null, [name]: 'First, think.' },
    ]),
    ['an omitted tool call', { ...echo, tool_calls: [first] }],
    ['all tool calls omitted', { ...echo, tool_calls: null }],
    ['tool calls in another order', { ...echo, tool_calls: [second, first] }],
    ['one more tool call', { ...echo, tool_calls: [first, second, second] }],
    [
      'the name of a function',
      { ...echo, tool_calls: [call('call_1', '{"path":"/tmp","deep":{"b":1,"a":[1]}}', 'walk'), second] },
    ],
    ['arguments', { ...echo, tool_calls: [call('call_1', '{"path":"/","deep":{"b":1,"a":[1]}}'), second] }],
    ['well-formed arguments emptied', { ...echo, tool_calls: [call('call_1', '{}'), second] }],
    ['arguments added', { ...echo, tool_calls: [first, call('call_2', '{"a":1}')] }],
    ['the type of a tool call', { ...echo, tool_calls: [{ ...first, type: 'custom' }, second] }],
  ]
  for (const [difference, message] of edited) t.notOk(isEcho(message), difference)
})

t.test('reasoning that was not sampled is an edit', async (t) => {
  const session = new Session()
  session.addTurn('t1', [user('hi')], { content: 'hello' })
  t.equal(
    session.describeMatch([user('hi'), assistant('hello', { reasoning_content: 'greet' }), user('x')]),
    'none:0',
  )
})

t.test(
  'malformed arguments may be echoed as an empty object or repaired, but in no other form',
  async (t) => {
    const malformed = (args: string) => {
      const session = new Session()
      const toolCalls = [call('a', args), call('b', '{"n": 1}')] as unknown as Calls
      session.addTurn('t1', [user('hi')], { toolCalls })
      return (echoed: unknown, other: unknown = '{"n":1}') =>
        session.describeMatch([
          user('hi'),
          assistant(null, { tool_calls: [call('a', echoed), call('b', other)] }),
        ]) === 't1:2'
    }
    const cut = malformed('{"path": "/tmp/caf\\u00e9\\nFoo", "deep": {"n": 12, "s": "a b')
    for (const echoed of [
      '{}',
      '',
      null,
      {},
      ' {"path": "/tmp/caf\\u00e9\\nFoo", "deep": {"n": 12, "s": "a b ',
      '{"deep":{"n":12,"s":"a b"}}',
    ]) {
      t.ok(cut(echoed), `echoed as ${JSON.stringify(echoed)}`)
    }
    for (const echoed of ['{"path":"/etc"}', '{"deep":{"n":13}}', '{"path"', '[]', '"path"']) {
      t.notOk(cut(echoed), `not as ${JSON.stringify(echoed)}`)
    }
    t.notOk(cut('{}', '{}'), 'the other tool call of the message was not malformed')
    t.ok(malformed("{'a': True, 'b': None}")('{"a":true,"b":null}'), 'a Python literal')
    t.ok(malformed('"{\\"a\\": 1}"')('{"a":1}'), 'JSON within JSON')
    t.ok(malformed('{"a": "x\nY"}')('{"a":"x\\nY"}'), 'a line break that was not escaped')
    t.ok(malformed('null')('{}'), 'JSON other than an object')
    t.notOk(malformed('[1,2]')('[2,1]'), 'JSON other than an object, edited')
  },
)

t.test('messages after malformed arguments continue the turn that sampled them', async (t) => {
  const session = new Session()
  session.addTurn('t1', [user('hi')], { toolCalls: [call('a', '{"n": ')] as unknown as Calls })
  const second = [user('hi'), assistant('', { tool_calls: [call('a', '{}')] }), result('a', 'bad arguments')]
  session.addTurn('t2', second, { content: 'sorry' })
  t.equal(session.describeMatch([...second, assistant('sorry'), user('go on')]), 't2:4')
  const verbatim = second.with(1, assistant(null, { tool_calls: [call('a', '{"n": ')] }))
  t.equal(
    session.describeMatch([...verbatim, assistant('sorry'), user('go on')]),
    't2:4',
    'echoed in another form this time',
  )
})

t.test('malformed arguments echoed unchanged several times are one conversation', async (t) => {
  const session = new Session()
  const messages = [user('hi')]
  const broken = [call('a', '{"n": ')]
  for (let turn = 0; turn < 60; turn++) {
    session.addTurn(`t${turn}`, messages, { toolCalls: broken as unknown as Calls })
    messages.push(assistant(null, { tool_calls: broken }), result('a', 'bad arguments'))
  }
  t.equal(session.describeMatch(messages), 't59:120')
})

t.test('tool-call ids may be renamed in call and result; results in another order are an edit', async (t) => {
  const session = new Session()
  const toolCalls = [call('a', '{"n":1}'), call('b', '{"n":2}')]
  session.addTurn('t1', [user('hi')], { toolCalls: toolCalls as unknown as Calls })
  const second = [
    user('hi'),
    assistant(null, { tool_calls: toolCalls }),
    result('a', 'same'),
    result('b', 'same'),
  ]
  session.addTurn('t2', second, { content: 'done' })
  const rename = (first: string, other: string, results: [string, string]) => [
    user('hi'),
    assistant(null, { tool_calls: [call(first, '{"n":1}'), call(other, '{"n":2}')] }),
    result(results[0], 'same'),
    result(results[1], 'same'),
    assistant('done'),
    user('next'),
  ]
  t.equal(session.describeMatch(rename('a', 'b', ['a', 'b'])), 't2:5')
  t.equal(session.describeMatch(rename('x', 'y', ['x', 'y'])), 't2:5')
  t.equal(session.describeMatch(rename('b', 'a', ['b', 'a'])), 't2:5', 'renamed to each other')
  t.equal(session.describeMatch(rename('a', 'b', ['b', 'a'])), 't1:2', 'in another order')
  t.equal(session.describeMatch(rename('x', 'y', ['x', 'x'])), 't1:2', 'two results of one tool call')
  t.equal(session.describeMatch(rename('x', 'y', ['x', 'z'])), 't1:2', 'a result without a tool call')
})

t.test('an id that a model reuses means its latest tool call', async (t) => {
  const session = new Session()
  const step = (id: string) => [assistant(null, { tool_calls: [call(id, '{}')] }), result(id, 'ok')]
  session.addTurn('t1', [user('hi'), ...step('call_0'), ...step('call_0')], { content: 'done' })
  t.equal(session.describeMatch([user('hi'), ...step('p'), ...step('q'), assistant('done')]), 't1:6')
})

t.test('many results search each message for their tool calls once', async (t) => {
  const countParentReads = (count: number) => {
    const ids = Array.from({ length: count }, (_, index) => `c${index}`)
    const calls = ids.map((id) => call(id, '{}'))
    const messages = [
      user('go'),
      assistant(null, { tool_calls: calls }),
      ...ids.map((id) => result(id, 'x')),
      ...ids.map((id) => result(`no ${id}`, 'x')),
    ]
    let reads = 0
    const last = new MessageTree().addMessages(asMessages(messages))
    for (const message of getMessagesBetween(undefined, last)) {
      const { parent } = message
      const get = () => {
        reads += 1
        return parent
      }
      Object.defineProperty(message, 'parent', { get })
    }
    readConversation(last, null)
    return reads
  }
  t.ok(
    countParentReads(400) <= 4 * countParentReads(100),
    `${countParentReads(100)} reads, and ${countParentReads(400)}`,
  )
})

t.test('messages other than the assistant’s are compared exactly', async (t) => {
  const matches = (recorded: Loose, sent: Loose) => {
    const session = new Session()
    session.addTurn('t1', [recorded], { content: 'ok' })
    return session.describeMatch([sent, assistant('ok')]) === 't1:2'
  }
  const text = (value: string, fields: Loose = {}) => ({ type: 'text', text: value, ...fields })
  const image = (url: string) => ({ type: 'image_url', image_url: { url } })
  const cache = { cache_control: { type: 'ephemeral' } }
  t.ok(matches(user('hi'), user([text('hi')])), 'text as a part')
  t.ok(matches(user('hi'), user([text('hi', cache)], cache)), 'cache markers')
  t.ok(matches(user('hi'), user('hi', { name: null, tags: [] })), 'null and empty fields')
  t.ok(matches(user(''), user(null)), 'no content')
  t.ok(matches(user([]), user([text('')])), 'empty content')
  t.ok(matches(user([text('a'), image('x')]), user([text('a'), { ...image('x'), ...cache }])), 'other parts')
  t.notOk(matches(user('hi'), user('hi ')), 'white space at the ends')
  t.notOk(matches(user('hi'), user('Hi')), 'text')
  t.notOk(matches(user([text('a'), text('b')]), user('ab')), 'text split into parts')
  t.notOk(matches(user([text('a'), text('b')]), user('a,1:b')), 'text that looks like parts')
  t.notOk(matches(user([5, 'abc']), user(['x'.repeat(5), 'abc'])), 'a number that looks like a length')
  t.notOk(matches(user([text('a'), image('x')]), user([text('a'), image('y')])), 'other parts, edited')
  t.notOk(matches(user([text('a'), image('x')]), user([image('x'), text('a')])), 'parts in another order')
  t.notOk(matches(user('hi'), user('hi', { name: 'Ann' })), 'a name')
  t.notOk(matches(user('hi'), user('hi', { reasoning_content: 'x' })), 'a field that a template could render')
  t.notOk(matches(system('hi'), user('hi')), 'the role')
  t.notOk(matches(user('\ud800'), user('\ud801')), 'unpaired surrogates')
})

t.test('a different history starts a branch, and earlier completions stay on their own one', async (t) => {
  const session = new Session()
  const main = [system('be good'), user('hi')]
  const second = [...main, assistant('hello'), user('more')]
  session.addTurn('t1', main, { content: 'hello' })
  session.addTurn('t2', second, { content: 'there' })
  t.equal(session.describeMatch([system('be a sub-agent'), user('hi')]), 'none:0')
  t.equal(
    session.describeMatch([system('be bad'), ...second.slice(1), assistant('there'), user('x')]),
    'none:0',
    'system',
  )
  t.equal(
    session.describeMatch([...second.with(3, user('MORE')), assistant('there'), user('x')]),
    't1:3',
    'edited message',
  )
  t.equal(
    session.describeMatch([...second.with(2, assistant('HELLO')), assistant('there'), user('x')]),
    'none:0',
    'edited completion',
  )
  t.equal(
    session.describeMatch([main[0]!, user('summary of the conversation'), user('x')]),
    'none:0',
    'compaction',
  )
  t.equal(
    session.describeMatch([...second, assistant('there'), user('x')]),
    't2:5',
    'and the first conversation continues',
  )
})

t.test('a branch is continued like any other conversation', async (t) => {
  const session = new Session()
  session.addTurn('main', [user('hi')], { content: 'hello' })
  const sub = [system('sub-agent'), user('task')]
  session.addTurn('sub', sub, { content: 'done' })
  session.addTurn('main2', [user('hi'), assistant('hello'), user('x')], { content: 'y' })
  t.equal(session.describeMatch([...sub, assistant('done'), user('again')]), 'sub:3')
  const edited = [user('hi'), assistant('HELLO'), user('x')]
  session.addTurn('edited', edited, { content: 'z' })
  t.equal(
    session.describeMatch([...edited, assistant('z'), user('x')]),
    'edited:4',
    'an assistant message that was not sampled is part of the history',
  )
})

t.test('other tools start a branch', async (t) => {
  const session = new Session()
  const tools = [tool('a'), tool('b')]
  const next = [user('hi'), assistant('hello'), user('more')]
  session.addTurn('t1', [user('hi')], { content: 'hello' }, tools)
  t.equal(session.describeMatch(next, structuredClone(tools)), 't1:2', 'the same by value')
  const reordered = tools.map(
    (entry) => Object.fromEntries(Object.entries(entry).toReversed()) as unknown as Tool,
  )
  t.equal(session.describeMatch(next, reordered), 't1:2', 'keys in another order')
  const spelledOut = tools.map((entry) => ({ ...entry, strict: undefined }))
  t.equal(session.describeMatch(next, spelledOut), 't1:2', 'with a field that JSON leaves out')
  for (const others of [null, [], [tool('a')], tools.toReversed(), [tool('a'), tool('c')]]) {
    t.equal(session.describeMatch(next, others), 'none:0', JSON.stringify(others))
  }
  session.addTurn('t2', [user('hi')], { content: 'hello' })
  t.equal(session.describeMatch(next, []), 't2:2', 'no tools are the same as an empty list')
})

t.test('between two completions of a prompt, the echo decides which one continues', async (t) => {
  const pairs: [string, Partial<CompletionMessage>, Loose, Partial<CompletionMessage>, Loose][] = [
    ['text', { content: '4' }, assistant('4'), { content: '5' }, assistant('5')],
    ['white space', { content: '4' }, assistant('4'), { content: ' 4' }, assistant(' 4')],
    [
      'tool-call ids',
      { toolCalls: [call('a', '{}')] as unknown as Calls },
      assistant('', { tool_calls: [call('a', '{ }')] }),
      { toolCalls: [call('b', '{}')] as unknown as Calls },
      assistant('', { tool_calls: [call('b', '{ }')] }),
    ],
    [
      'the formatting of arguments',
      { toolCalls: [call('a', '{"n":1}')] as unknown as Calls },
      assistant('', { tool_calls: [call('x', '{"n":1}')] }),
      { toolCalls: [call('a', '{"n": 1}')] as unknown as Calls },
      assistant('', { tool_calls: [call('x', '{"n": 1}')] }),
    ],
    [
      'reasoning',
      { content: '4', reasoning: 'count' },
      assistant('4', { reasoning_content: 'count' }),
      { content: '4', reasoning: 'guess' },
      assistant('4', { reasoning_content: 'guess' }),
    ],
    [
      'whether arguments were malformed',
      { toolCalls: [call('a', '{')] as unknown as Calls },
      assistant('', { tool_calls: [call('a', '{}')] }),
      { toolCalls: [call('b', '{}')] as unknown as Calls },
      assistant('', { tool_calls: [call('b', '{}')] }),
    ],
  ]
  for (const [difference, first, firstEcho, second, secondEcho] of pairs) {
    const session = new Session()
    session.addTurn('t1', [user('2+2?')], first)
    session.addTurn('t2', [user('2+2?')], second)
    t.equal(session.describeMatch([user('2+2?'), firstEcho, user('sure?')]), 't1:2', difference)
    t.equal(session.describeMatch([user('2+2?'), secondEcho, user('sure?')]), 't2:2', difference)
  }
})

t.test('the echo also decides for all later requests', async (t) => {
  const session = new Session()
  const createMessages = (response: string) => [user('2+2?'), assistant(response), user('sure?')]
  session.addTurn('a1', [user('2+2?')], { content: '4' })
  session.addTurn('b1', [user('2+2?')], { content: '4 ' })
  session.addTurn('a2', createMessages('4'), { content: 'yes' })
  session.addTurn('b2', createMessages('4 '), { content: 'yes' })
  t.equal(session.describeMatch([...createMessages('4'), assistant('yes'), user('so')]), 'a2:4')
  t.equal(session.describeMatch([...createMessages('4 '), assistant('yes'), user('so')]), 'b2:4')
})

t.test('the deepest match has precedence over the best wording', async (t) => {
  const session = new Session()
  session.addTurn('a1', [user('2+2?')], { content: '4' })
  session.addTurn('b1', [user('2+2?')], { content: '4 ' })
  session.addTurn('b2', [user('2+2?'), assistant('4 '), user('sure?')], { content: 'yes' })
  t.equal(
    session.describeMatch([user('2+2?'), assistant('4'), user('sure?'), assistant('yes'), user('so')]),
    'b2:4',
  )
})

t.test('equal completions are continued once each, the latest first', async (t) => {
  const session = new Session()
  for (const name of ['t1', 't2', 't3']) session.addTurn(name, [user('hi')], { content: 'hello' })
  const next = (text: string) => [user('hi'), assistant('hello'), user(text)]
  for (const expected of ['t3:2', 't2:2', 't1:2', 't3:2']) {
    const text = `after ${expected} of ${session.match([]).order}`
    t.equal(session.describeMatch(next(text)), expected)
    session.addTurn(text, next(text), { content: 'ok' })
  }
})

t.test(
  'a retry has the parent of the original attempt, also where equal completions were continued once each',
  async (t) => {
    const session = new Session()
    for (const name of ['t1', 't2']) session.addTurn(name, [user('hi')], { content: 'hello' })
    const next = [user('hi'), assistant('hello'), user('more')]
    t.equal(session.describeMatch(next), 't2:2')
    t.equal(session.describeMatch(next), 't2:2', 'the original attempt had no completion')
    session.addTurn('try', next, { content: 'ok' })
    t.equal(
      session.describeMatch(next),
      't2:2',
      'the original attempt was completed, but its response was lost',
    )
    t.equal(session.describeMatch(next.with(2, user('else'))), 't1:2', 'another request is not a retry')
  },
)

t.test('of two requests in flight neither is the other’s parent, and both are continued', async (t) => {
  const session = new Session()
  const prompt = [user('hi')]
  const first = session.match(prompt)
  const second = session.match([...prompt, assistant('hello'), user('early')])
  t.equal(second.parent, undefined, 'its parent has no completion yet')
  session.index.add(second, { content: 'two', reasoning: null, toolCalls: [] }, 'second')
  session.index.add(first, { content: 'hello', reasoning: null, toolCalls: [] }, 'first')
  t.equal(session.describeMatch([...prompt, assistant('hello'), user('late')]), 'first:2')
  t.equal(
    session.describeMatch([...prompt, assistant('hello'), user('early'), assistant('two'), user('x')]),
    'second:4',
  )
})

t.test(
  'among equal completions in flight together, the later request is the latest, in any order of completion',
  async (t) => {
    const session = new Session()
    const [early, late] = [session.match([user('hi')]), session.match([user('hi')])]
    const response = { content: 'hello', reasoning: null, toolCalls: [] }
    session.index.add(late, response, 'late')
    session.index.add(early, response, 'early')
    t.equal(session.describeMatch([user('hi'), assistant('hello')]), 'late:2')
  },
)

t.test('a request reads its new messages once, and those of earlier requests not at all', async (t) => {
  let reads = 0
  const count = (message: Loose): Loose => {
    const { content, ...rest } = message
    const get = () => {
      reads += 1
      return content
    }
    return Object.defineProperty(rest, 'content', { enumerable: true, get })
  }
  const session = new Session()
  const messages: Loose[] = []
  for (let turn = 0; turn < 50; turn++) {
    messages.push(count(user(`question ${turn}`)))
    reads = 0
    const match = session.match(messages)
    // The completion and the question are each serialized and compared.
    t.ok(reads <= 4, `${reads} reads in turn ${turn}`)
    reads = 0
    t.equal(match.sharedMessages, messages.length - 1)
    session.index.add(match, { content: `answer ${turn}`, reasoning: null, toolCalls: [] }, `t${turn}`)
    t.equal(reads, 0, 'a turn is added from the messages already read')
    messages.push(count(assistant(`answer ${turn}`)))
  }
})

t.test(
  'a request that starts where the previous one passed its parent finds turns recorded since',
  async (t) => {
    const { index, tree } = new Session()
    const sample = (content: string) => ({ content, reasoning: null, toolCalls: [] })
    const first = createConversation([user('hi')], null, tree)
    const messages = [user('hi'), assistant('yes '), user('on')]
    const next = createConversation(messages, null, tree)
    index.add(index.match(first), sample('yes'), 't1')
    const inFlight = index.match(first)
    t.equal(index.match(next).parent?.turn, 't1')
    index.add(inFlight, sample('yes '), 't2')
    t.equal(index.match(next).parent?.turn, 't2', 'the completion whose wording the echo has')
    index.add(index.match(next), sample('so'), 't3')
    const on = createConversation([...messages, assistant('so'), user('and on')], null, tree)
    t.match(index.match(on), { parent: { turn: 't3' }, sharedMessages: 4 })
  },
)

t.test('the prefix that a request shares with the previous one is not looked up again', async (t) => {
  let lookups = 0
  const observed = new WeakSet<object>()
  /** Counts how often the message's digest is read. */
  const observe = (key: MessageKey): void => {
    const { digest } = key
    if (observed.has(key)) return
    observed.add(key)
    const get = () => {
      lookups += 1
      return digest
    }
    Object.defineProperty(key, 'digest', { get })
  }
  const { index, tree } = new Session()
  const messages: Loose[] = []
  for (let turn = 0; turn < 30; turn++) {
    messages.push(user(`question ${turn}`))
    const read = createConversation(messages, null, tree)
    for (const message of getMessagesBetween(undefined, read.last)) observe(getMessageKey(message))
    lookups = 0
    const match = index.match(read)
    t.equal(match.sharedMessages, messages.length - 1)
    t.ok(lookups < 8, `${lookups} look-ups`)
    index.add(match, { content: `answer ${turn}`, reasoning: null, toolCalls: [] }, `t${turn}`)
    messages.push(assistant(`answer ${turn}`))
  }
})

t.test('fields nested too deeply are rejected, and arguments nested too deeply are text', async (t) => {
  const deep = `${'['.repeat(50_000)}${']'.repeat(50_000)}`
  const session = new Session()
  const last = session.tree.addMessageTexts([`{"role":"user","content":"hi","extra":${deep}}`])
  t.throws(() => readConversation(last, null), { code: 'invalid_request' })
  const toolCalls = [call('a', deep)]
  session.addTurn('t1', [user('hi')], { toolCalls: toolCalls as unknown as Calls })
  t.equal(session.describeMatch([user('hi'), assistant(null, { tool_calls: toolCalls })]), 't1:2')
})

t.test('results with the same text but other tool calls have other keys', (t) => {
  const getLastKey = (toolCallId: string) => {
    const calls = ['c1', 'c2'].map((id) => assistant(null, { tool_calls: [call(id, '{"a":1}')] }))
    const messages = [calls[0]!, result('c1', 'first'), calls[1]!, result(toolCallId, 'second')]
    const last = new MessageTree().addMessages(asMessages(messages))
    readConversation(last, null)
    return getMessageKey(last!)
  }
  t.strictNotSame(getLastKey('c1'), getLastKey('c2'))
  t.strictSame(getLastKey('c2'), getLastKey('c2'))
  t.end()
})

t.test('matching a long conversation yields to other tasks, and has the same result', async (t) => {
  const messages = Array.from({ length: 3_500 }, (_, index) =>
    index % 2 === 0
      ? assistant(null, { tool_calls: [call(`c${index}`, '{"a":1}')] })
      : result(`c${index % 1_000 === 1 ? 0 : index - 1}`, `${index}`),
  )
  const getKeys = (last: ReturnType<MessageTree['addMessages']>) =>
    getMessagesBetween(undefined, last).map(getMessageKey)
  const atOnce = new MessageTree().addMessages(asMessages(messages))
  readConversation(atOnce, null)
  const long = new MessageTree().addMessages(asMessages(messages))
  let iterations = 0
  let isOver = false
  const count = () => {
    iterations += 1
    if (!isOver) setImmediate(count)
  }
  setImmediate(count)
  // Another request with the same messages comes in between.
  const other = new Promise((resolve) => setImmediate(() => resolve(readConversation(long?.parent, null))))
  await readConversationInSlices(long, null)
  isOver = true
  await other
  t.ok(iterations >= 3, `${iterations} iterations`)
  t.same(getKeys(long), getKeys(atOnce))
})
