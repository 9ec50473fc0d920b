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
class Talk {
  readonly index = new PrefixIndex<string>()
  readonly tree = new MessageTree()

  match(messages: Loose[], tools: Tool[] | null = null) {
    return this.index.match(createConversation(asMessages(messages), tools, this.tree))
  }

  turn(name: string, messages: Loose[], response: Partial<CompletionMessage>, tools: Tool[] | null = null) {
    const completion = { content: null, reasoning: null, toolCalls: [], ...response }
    return this.index.add(this.match(messages, tools), completion, name)
  }

  /** Returns the parent and the number of shared messages, as `t1:2`. */
  found(messages: Loose[], tools: Tool[] | null = null): string {
    const { parent, sharedMessages } = this.match(messages, tools)
    return parent === undefined ? `none:${sharedMessages}` : `${parent.turn}:${sharedMessages}`
  }
}

const rich: Partial<CompletionMessage> = {
  content: '\nI will look. ',
  reasoning: ' First, look.\n',
  toolCalls: [
    call('call_1', '{"path": "/tmp", "deep": {"b": 1, "a": [1.0]}}'),
    call('call_2', ''),
  ] as unknown as Calls,
}
const richCalls = [call('call_1', '{"path": "/tmp", "deep": {"b": 1, "a": [1.0]}}'), call('call_2', '')]

/** Returns whether the index accepts this echo of the rich completion. */
function isEcho(echo: Loose): boolean {
  const talk = new Talk()
  talk.turn('t1', [user('hi')], rich)
  return talk.found([user('hi'), echo, user('go on')]) === 't1:2'
}

t.test('a first request, and one to an empty index, has no parent', async (t) => {
  const talk = new Talk()
  t.equal(talk.found([user('hi')]), 'none:0')
  talk.turn('t1', [user('hi')], { content: 'hello' })
  t.equal(talk.found([user('other')]), 'none:0')
  t.equal(talk.found([user('hi')]), 'none:0', 'the prompt alone continues nothing')
})

t.test('a request continues the deepest turn whose messages and completion it extends', async (t) => {
  const talk = new Talk()
  const first = [user('hi')]
  const second = [...first, assistant('hello'), user('more')]
  const third = [...second, assistant('there'), user('and more'), user('please')]
  talk.turn('t1', first, { content: 'hello' })
  t.equal(talk.found(second), 't1:2')
  talk.turn('t2', second, { content: 'there' })
  t.equal(talk.found(third), 't2:4')
  t.equal(talk.found(second), 't1:2', 'a retry has the parent of the original attempt')
  t.equal(talk.found(second.slice(0, 2)), 't1:2', 'a request may end with the completion')
})

t.test('an echo is the same message if it differs only in details that clients change', async (t) => {
  const echo = assistant('\nI will look. ', { reasoning_content: ' First, look.\n', tool_calls: richCalls })
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
    ['tool-call ids', withCalls(call('x', richCalls[0]!.function && args(0)), call('y', args(1)))],
    ['spacing of arguments', withCalls(call('1', '{"path":"/tmp","deep":{"b":1,"a":[1]}}'), call('2', '{}'))],
    [
      'key order of arguments',
      withCalls(call('1', '{"deep":{"a":[1.0],"b":1},"path":"/tmp"}'), call('2', null)),
    ],
    ['arguments as an object', withCalls(call('1', { deep: { a: [1], b: 1 }, path: '/tmp' }), call('2', {}))],
    [
      'the index that streams give a tool call',
      withCalls({ ...richCalls[0], index: 0 }, { ...richCalls[1], index: 1 }),
    ],
    ['tool calls without a type', withCalls(...richCalls.map(({ type: _, ...rest }) => rest))],
    ['reasoning left out', without('reasoning_content')],
    ['reasoning under another name', { ...without('reasoning_content'), reasoning: 'First, look.' }],
    ['reasoning under both names', { ...echo, reasoning: 'First, look.' }],
    ['reasoning under one of both names', { ...echo, reasoning_content: '', reasoning: 'First, look.' }],
    ['empty reasoning', { ...echo, reasoning_content: '' }],
    ['token ids from the proxy', { ...echo, provider_specific_fields: { token_ids: [1, 2] } }],
    ['a refusal that no template shows', { ...echo, refusal: 'no' }],
    ['a cache mark', { ...echo, cache_control: { type: 'ephemeral' } }],
  ]
  for (const [what, message] of tidied) t.ok(isEcho(message), what)

  function args(index: number): unknown {
    return (richCalls[index]!.function as Loose).arguments
  }
})

t.test('an edited echo is another message', async (t) => {
  const echo = assistant('I will look.', { reasoning_content: 'First, look.', tool_calls: richCalls })
  const [first, second] = richCalls as [Loose, Loose]
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
    ['a call more', { ...echo, tool_calls: [first, second, second] }],
    [
      'the name of a function',
      { ...echo, tool_calls: [call('call_1', '{"path":"/tmp","deep":{"b":1,"a":[1]}}', 'walk'), second] },
    ],
    ['arguments', { ...echo, tool_calls: [call('call_1', '{"path":"/","deep":{"b":1,"a":[1]}}'), second] }],
    ['well-formed arguments emptied', { ...echo, tool_calls: [call('call_1', '{}'), second] }],
    ['arguments added', { ...echo, tool_calls: [first, call('call_2', '{"a":1}')] }],
    ['the type of a tool call', { ...echo, tool_calls: [{ ...first, type: 'custom' }, second] }],
  ]
  for (const [what, message] of edited) t.notOk(isEcho(message), what)
})

t.test('reasoning that was not sampled is an edit', async (t) => {
  const talk = new Talk()
  talk.turn('t1', [user('hi')], { content: 'hello' })
  t.equal(talk.found([user('hi'), assistant('hello', { reasoning_content: 'greet' }), user('x')]), 'none:0')
})

t.test(
  'malformed arguments may be echoed as an empty object or repaired, but in no other form',
  async (t) => {
    const malformed = (args: string) => {
      const talk = new Talk()
      const toolCalls = [call('a', args), call('b', '{"n": 1}')] as unknown as Calls
      talk.turn('t1', [user('hi')], { toolCalls })
      return (echoed: unknown, other: unknown = '{"n":1}') =>
        talk.found([user('hi'), assistant(null, { tool_calls: [call('a', echoed), call('b', other)] })]) ===
        't1:2'
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
  const talk = new Talk()
  talk.turn('t1', [user('hi')], { toolCalls: [call('a', '{"n": ')] as unknown as Calls })
  const second = [user('hi'), assistant('', { tool_calls: [call('a', '{}')] }), result('a', 'bad arguments')]
  talk.turn('t2', second, { content: 'sorry' })
  t.equal(talk.found([...second, assistant('sorry'), user('go on')]), 't2:4')
  const verbatim = second.with(1, assistant(null, { tool_calls: [call('a', '{"n": ')] }))
  t.equal(
    talk.found([...verbatim, assistant('sorry'), user('go on')]),
    't2:4',
    'echoed in another form this time',
  )
})

t.test('malformed arguments echoed unchanged several times are one conversation', async (t) => {
  const talk = new Talk()
  const messages = [user('hi')]
  const broken = [call('a', '{"n": ')]
  for (let turn = 0; turn < 60; turn++) {
    talk.turn(`t${turn}`, messages, { toolCalls: broken as unknown as Calls })
    messages.push(assistant(null, { tool_calls: broken }), result('a', 'bad arguments'))
  }
  t.equal(talk.found(messages), 't59:120')
})

t.test('tool-call ids may be renamed in call and result; results in another order are an edit', async (t) => {
  const talk = new Talk()
  const toolCalls = [call('a', '{"n":1}'), call('b', '{"n":2}')]
  talk.turn('t1', [user('hi')], { toolCalls: toolCalls as unknown as Calls })
  const second = [
    user('hi'),
    assistant(null, { tool_calls: toolCalls }),
    result('a', 'same'),
    result('b', 'same'),
  ]
  talk.turn('t2', second, { content: 'done' })
  const rename = (first: string, other: string, results: [string, string]) => [
    user('hi'),
    assistant(null, { tool_calls: [call(first, '{"n":1}'), call(other, '{"n":2}')] }),
    result(results[0], 'same'),
    result(results[1], 'same'),
    assistant('done'),
    user('next'),
  ]
  t.equal(talk.found(rename('a', 'b', ['a', 'b'])), 't2:5')
  t.equal(talk.found(rename('x', 'y', ['x', 'y'])), 't2:5')
  t.equal(talk.found(rename('b', 'a', ['b', 'a'])), 't2:5', 'renamed to each other')
  t.equal(talk.found(rename('a', 'b', ['b', 'a'])), 't1:2', 'in another order')
  t.equal(talk.found(rename('x', 'y', ['x', 'x'])), 't1:2', 'two results of one tool call')
  t.equal(talk.found(rename('x', 'y', ['x', 'z'])), 't1:2', 'a result without a tool call')
})

t.test('an id that a model reuses means its latest tool call', async (t) => {
  const talk = new Talk()
  const step = (id: string) => [assistant(null, { tool_calls: [call(id, '{}')] }), result(id, 'ok')]
  talk.turn('t1', [user('hi'), ...step('call_0'), ...step('call_0')], { content: 'done' })
  t.equal(talk.found([user('hi'), ...step('p'), ...step('q'), assistant('done')]), 't1:6')
})

t.test('many results search each message for their tool calls once', async (t) => {
  const looksAt = (count: number) => {
    const ids = Array.from({ length: count }, (_, index) => `c${index}`)
    const calls = ids.map((id) => call(id, '{}'))
    const talk = [
      user('go'),
      assistant(null, { tool_calls: calls }),
      ...ids.map((id) => result(id, 'x')),
      ...ids.map((id) => result(`no ${id}`, 'x')),
    ]
    let checks = 0
    const last = new MessageTree().addMessages(asMessages(talk))
    for (const message of getMessagesBetween(undefined, last)) {
      const { parent } = message
      const get = () => {
        checks += 1
        return parent
      }
      Object.defineProperty(message, 'parent', { get })
    }
    readConversation(last, null)
    return checks
  }
  t.ok(looksAt(400) <= 4 * looksAt(100), `${looksAt(100)} looks, and ${looksAt(400)}`)
})

t.test('messages other than the assistant’s are compared exactly', async (t) => {
  const matches = (recorded: Loose, sent: Loose) => {
    const talk = new Talk()
    talk.turn('t1', [recorded], { content: 'ok' })
    return talk.found([sent, assistant('ok')]) === 't1:2'
  }
  const text = (value: string, fields: Loose = {}) => ({ type: 'text', text: value, ...fields })
  const image = (url: string) => ({ type: 'image_url', image_url: { url } })
  const cache = { cache_control: { type: 'ephemeral' } }
  t.ok(matches(user('hi'), user([text('hi')])), 'text as a part')
  t.ok(matches(user('hi'), user([text('hi', cache)], cache)), 'marks for the cache')
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
  const talk = new Talk()
  const main = [system('be good'), user('hi')]
  const second = [...main, assistant('hello'), user('more')]
  talk.turn('t1', main, { content: 'hello' })
  talk.turn('t2', second, { content: 'there' })
  t.equal(talk.found([system('be a sub-agent'), user('hi')]), 'none:0')
  t.equal(
    talk.found([system('be bad'), ...second.slice(1), assistant('there'), user('x')]),
    'none:0',
    'system',
  )
  t.equal(
    talk.found([...second.with(3, user('MORE')), assistant('there'), user('x')]),
    't1:3',
    'edited message',
  )
  t.equal(
    talk.found([...second.with(2, assistant('HELLO')), assistant('there'), user('x')]),
    'none:0',
    'edited answer',
  )
  t.equal(talk.found([main[0]!, user('summary of the conversation'), user('x')]), 'none:0', 'compaction')
  t.equal(
    talk.found([...second, assistant('there'), user('x')]),
    't2:5',
    'and the first conversation continues',
  )
})

t.test('a branch is continued like any other conversation', async (t) => {
  const talk = new Talk()
  talk.turn('main', [user('hi')], { content: 'hello' })
  const sub = [system('sub-agent'), user('task')]
  talk.turn('sub', sub, { content: 'done' })
  talk.turn('main2', [user('hi'), assistant('hello'), user('x')], { content: 'y' })
  t.equal(talk.found([...sub, assistant('done'), user('again')]), 'sub:3')
  const edited = [user('hi'), assistant('HELLO'), user('x')]
  talk.turn('edited', edited, { content: 'z' })
  t.equal(
    talk.found([...edited, assistant('z'), user('x')]),
    'edited:4',
    'an assistant message that was not sampled is kept',
  )
})

t.test('other tools start a branch', async (t) => {
  const talk = new Talk()
  const tools = [tool('a'), tool('b')]
  const next = [user('hi'), assistant('hello'), user('more')]
  talk.turn('t1', [user('hi')], { content: 'hello' }, tools)
  t.equal(talk.found(next, structuredClone(tools)), 't1:2', 'the same by value')
  const reordered = tools.map(
    (entry) => Object.fromEntries(Object.entries(entry).toReversed()) as unknown as Tool,
  )
  t.equal(talk.found(next, reordered), 't1:2', 'keys in another order')
  const spelledOut = tools.map((entry) => ({ ...entry, strict: undefined }))
  t.equal(talk.found(next, spelledOut), 't1:2', 'with a field that JSON leaves out')
  for (const others of [null, [], [tool('a')], tools.toReversed(), [tool('a'), tool('c')]]) {
    t.equal(talk.found(next, others), 'none:0', JSON.stringify(others))
  }
  talk.turn('t2', [user('hi')], { content: 'hello' })
  t.equal(talk.found(next, []), 't2:2', 'no tools are the same as an empty list')
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
  for (const [what, first, firstEcho, second, secondEcho] of pairs) {
    const talk = new Talk()
    talk.turn('t1', [user('2+2?')], first)
    talk.turn('t2', [user('2+2?')], second)
    t.equal(talk.found([user('2+2?'), firstEcho, user('sure?')]), 't1:2', what)
    t.equal(talk.found([user('2+2?'), secondEcho, user('sure?')]), 't2:2', what)
  }
})

t.test('the echo also decides for all later requests', async (t) => {
  const talk = new Talk()
  const line = (response: string) => [user('2+2?'), assistant(response), user('sure?')]
  talk.turn('a1', [user('2+2?')], { content: '4' })
  talk.turn('b1', [user('2+2?')], { content: '4 ' })
  talk.turn('a2', line('4'), { content: 'yes' })
  talk.turn('b2', line('4 '), { content: 'yes' })
  t.equal(talk.found([...line('4'), assistant('yes'), user('so')]), 'a2:4')
  t.equal(talk.found([...line('4 '), assistant('yes'), user('so')]), 'b2:4')
})

t.test('the deepest match has precedence over the best wording', async (t) => {
  const talk = new Talk()
  talk.turn('a1', [user('2+2?')], { content: '4' })
  talk.turn('b1', [user('2+2?')], { content: '4 ' })
  talk.turn('b2', [user('2+2?'), assistant('4 '), user('sure?')], { content: 'yes' })
  t.equal(talk.found([user('2+2?'), assistant('4'), user('sure?'), assistant('yes'), user('so')]), 'b2:4')
})

t.test('equal completions are continued once each, the latest first', async (t) => {
  const talk = new Talk()
  for (const name of ['t1', 't2', 't3']) talk.turn(name, [user('hi')], { content: 'hello' })
  const next = (text: string) => [user('hi'), assistant('hello'), user(text)]
  for (const expected of ['t3:2', 't2:2', 't1:2', 't3:2']) {
    const text = `after ${expected} of ${talk.match([]).order}`
    t.equal(talk.found(next(text)), expected)
    talk.turn(text, next(text), { content: 'ok' })
  }
})

t.test(
  'a retry has the parent of the original attempt, also where equal completions were continued once each',
  async (t) => {
    const talk = new Talk()
    for (const name of ['t1', 't2']) talk.turn(name, [user('hi')], { content: 'hello' })
    const next = [user('hi'), assistant('hello'), user('more')]
    t.equal(talk.found(next), 't2:2')
    t.equal(talk.found(next), 't2:2', 'the original attempt had no completion')
    talk.turn('try', next, { content: 'ok' })
    t.equal(talk.found(next), 't2:2', 'the original attempt was completed, but its response was lost')
    t.equal(talk.found(next.with(2, user('else'))), 't1:2', 'another request is not a retry')
  },
)

t.test('of two requests in flight neither is the other’s parent, and both are continued', async (t) => {
  const talk = new Talk()
  const prompt = [user('hi')]
  const first = talk.match(prompt)
  const second = talk.match([...prompt, assistant('hello'), user('early')])
  t.equal(second.parent, undefined, 'its parent has no completion yet')
  talk.index.add(second, { content: 'two', reasoning: null, toolCalls: [] }, 'second')
  talk.index.add(first, { content: 'hello', reasoning: null, toolCalls: [] }, 'first')
  t.equal(talk.found([...prompt, assistant('hello'), user('late')]), 'first:2')
  t.equal(talk.found([...prompt, assistant('hello'), user('early'), assistant('two'), user('x')]), 'second:4')
})

t.test(
  'among equal completions in flight together, the later request is the latest, in any order of completion',
  async (t) => {
    const talk = new Talk()
    const [early, late] = [talk.match([user('hi')]), talk.match([user('hi')])]
    const response = { content: 'hello', reasoning: null, toolCalls: [] }
    talk.index.add(late, response, 'late')
    talk.index.add(early, response, 'early')
    t.equal(talk.found([user('hi'), assistant('hello')]), 'late:2')
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
  const talk = new Talk()
  const messages: Loose[] = []
  for (let turn = 0; turn < 50; turn++) {
    messages.push(count(user(`question ${turn}`)))
    reads = 0
    const match = talk.match(messages)
    // The completion and the question are each serialized and compared.
    t.ok(reads <= 4, `${reads} reads in turn ${turn}`)
    reads = 0
    t.equal(match.sharedMessages, messages.length - 1)
    talk.index.add(match, { content: `answer ${turn}`, reasoning: null, toolCalls: [] }, `t${turn}`)
    t.equal(reads, 0, 'a turn is added from the messages already read')
    messages.push(count(assistant(`answer ${turn}`)))
  }
})

t.test(
  'a request that starts where the previous one passed its parent finds turns recorded since',
  async (t) => {
    const { index, tree } = new Talk()
    const sample = (content: string) => ({ content, reasoning: null, toolCalls: [] })
    const first = createConversation([user('hi')], null, tree)
    const messages = [user('hi'), assistant('yes '), user('on')]
    const line = createConversation(messages, null, tree)
    index.add(index.match(first), sample('yes'), 't1')
    const inFlight = index.match(first)
    t.equal(index.match(line).parent?.turn, 't1')
    index.add(inFlight, sample('yes '), 't2')
    t.equal(index.match(line).parent?.turn, 't2', 'the completion whose wording the echo has')
    index.add(index.match(line), sample('so'), 't3')
    const on = createConversation([...messages, assistant('so'), user('and on')], null, tree)
    t.match(index.match(on), { parent: { turn: 't3' }, sharedMessages: 4 })
  },
)

t.test('the prefix that a request shares with the previous one is not looked up again', async (t) => {
  let lookUps = 0
  const watched = new WeakSet<object>()
  /** Counts how often the message's digest is read. */
  const watch = (key: MessageKey): void => {
    const { digest } = key
    if (watched.has(key)) return
    watched.add(key)
    const get = () => {
      lookUps += 1
      return digest
    }
    Object.defineProperty(key, 'digest', { get })
  }
  const { index, tree } = new Talk()
  const messages: Loose[] = []
  for (let turn = 0; turn < 30; turn++) {
    messages.push(user(`question ${turn}`))
    const read = createConversation(messages, null, tree)
    for (const message of getMessagesBetween(undefined, read.last)) watch(getMessageKey(message))
    lookUps = 0
    const match = index.match(read)
    t.equal(match.sharedMessages, messages.length - 1)
    t.ok(lookUps < 8, `${lookUps} look-ups`)
    index.add(match, { content: `answer ${turn}`, reasoning: null, toolCalls: [] }, `t${turn}`)
    messages.push(assistant(`answer ${turn}`))
  }
})

t.test('fields nested too deeply are rejected, and arguments nested too deeply are text', async (t) => {
  const deep = `${'['.repeat(50_000)}${']'.repeat(50_000)}`
  const talk = new Talk()
  const last = talk.tree.addMessageTexts([`{"role":"user","content":"hi","extra":${deep}}`])
  t.throws(() => readConversation(last, null), { code: 'invalid_request' })
  const toolCalls = [call('a', deep)]
  talk.turn('t1', [user('hi')], { toolCalls: toolCalls as unknown as Calls })
  t.equal(talk.found([user('hi'), assistant(null, { tool_calls: toolCalls })]), 't1:2')
})

t.test('results with the same text differ by their tool calls, whichever message has these', (t) => {
  const lastKey = (answered: string) => {
    const calls = ['c1', 'c2'].map((id) => assistant(null, { tool_calls: [call(id, '{"a":1}')] }))
    const messages = [calls[0]!, result('c1', 'first'), calls[1]!, result(answered, 'second')]
    const last = new MessageTree().addMessages(asMessages(messages))
    readConversation(last, null)
    return getMessageKey(last!)
  }
  t.strictNotSame(lastKey('c1'), lastKey('c2'))
  t.strictSame(lastKey('c2'), lastKey('c2'))
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
  let turns = 0
  let isOver = false
  const count = () => {
    turns += 1
    if (!isOver) setImmediate(count)
  }
  setImmediate(count)
  // Another request with the same messages comes in between.
  const other = new Promise((resolve) => setImmediate(() => resolve(readConversation(long?.parent, null))))
  await readConversationInSlices(long, null)
  isOver = true
  await other
  t.ok(turns >= 3, `${turns} turns`)
  t.same(getKeys(long), getKeys(atOnce))
})
