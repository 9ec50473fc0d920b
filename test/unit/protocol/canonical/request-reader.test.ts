import fc from 'fast-check'
import t from 'tap'
import {
  type BodyContent,
  RequestReader,
  type RequestReaderOptions,
} from '../../../../src/protocol/canonical/request-reader.ts'
import { limitRuns } from '../../../helpers/tier.ts'

interface Body {
  messages: object[]
  tools: object[]
  [field: string]: unknown
}

const LONG = 'x'.repeat(1_000)
const message = (index: number, content: unknown = `${index} ${LONG}`) => ({ role: 'user', content })
const HISTORY = Array.from({ length: 8 }, (_, index) => message(index))
const TOOLS = [{ type: 'function', function: { name: 'f' } }]

function read(reader: RequestReader, body: object | string, options: RequestReaderOptions = {}): BodyContent {
  return reader.read(Buffer.from(typeof body === 'string' ? body : JSON.stringify(body)), undefined, options)
}

function parse(reader: RequestReader, body: object | string): Body {
  return read(reader, body).value as Body
}

t.test('parts that a body repeats from the previous one are the same objects', (t) => {
  const reader = new RequestReader()
  const body = { model: 'm', messages: HISTORY, tools: TOOLS }
  const first = parse(reader, body)
  const longer = { ...body, messages: [...HISTORY, message(8), message(9)] }
  const second = parse(reader, longer)
  t.strictSame(second, longer)
  for (const [index, known] of first.messages.entries()) t.equal(second.messages[index], known)
  t.equal(second.tools, first.tools)
  t.end()
})

t.test('a body that differs in the middle shares the parts before', (t) => {
  for (const index of [0, 1, 4, 7]) {
    const reader = new RequestReader()
    const first = parse(reader, { messages: HISTORY })
    const edited = { messages: HISTORY.with(index, message(99, 'edited')) }
    const second = parse(reader, edited)
    t.strictSame(second, edited)
    t.equal(second.messages[0] === first.messages[0], index > 0)
    t.not(second.messages[index], first.messages[index])
  }
  t.end()
})

t.test(
  'only the part of a long list that verifies a repetition is stored, unless its JSON is needed',
  (t) => {
    const long = Array.from({ length: 300 }, (_, index) => message(index))
    const size = JSON.stringify(long).length
    for (const [options, copies] of [
      [{}, 1],
      [{ listJson: true }, 2],
    ] as const) {
      const reader = new RequestReader()
      const first = read(reader, { messages: long }, options).value as Body
      t.ok(reader.valueBytes > size && reader.valueBytes < 1.3 * size, `${reader.valueBytes} bytes of values`)
      t.ok(reader.bytes < (copies - 1 + 0.2) * size, `${reader.bytes} bytes of ${size}`)
      const longer = [...long, message(300)]
      const { parsed } = reader
      const { value, list } = read(reader, { messages: longer }, options)
      t.equal(reader.parsed, parsed + 1)
      t.equal((value as Body).messages[299], first.messages[299])
      t.equal(list?.json?.toString(), copies === 2 ? JSON.stringify(longer).slice(1, -1) : undefined)
      // Near an early branch, messages just before it may be read again.
      const branch = long.with(150, message(150, 'edited'))
      const branched = read(reader, { messages: branch }, options).value as Body
      t.strictSame(branched.messages, branch)
      t.equal(branched.messages[130], first.messages[130])
      t.ok(reader.parsed - parsed <= 1 + 150 + 20)
    }
    t.end()
  },
)

t.test('fields before or after the list may change', (t) => {
  const reader = new RequestReader()
  const first = parse(reader, { model: 'm', messages: HISTORY, seed: 1 })
  const second = parse(reader, { model: 'm', messages: HISTORY, seed: 2, stop: ['"', ']}'] })
  t.strictSame(second, { model: 'm', messages: HISTORY, seed: 2, stop: ['"', ']}'] })
  t.equal(second.messages[7], first.messages[7])
  t.strictSame(parse(reader, { model: 'n', messages: HISTORY }), { model: 'n', messages: HISTORY })
  t.end()
})

t.test('a list is shared wherever it is, with its JSON', (t) => {
  const reader = new RequestReader()
  const first = parse(reader, { request: 1, messages: HISTORY })
  const text = `{"request":"two","n":{"messages":[]},"messages": ${JSON.stringify(HISTORY)} ,"x":1}`
  const { value, list } = read(reader, text, { listJson: true })
  t.equal(JSON.stringify(value), JSON.stringify(JSON.parse(text)))
  t.equal((value as Body).messages[7], first.messages[7])
  t.equal(`[${list?.json?.toString()}]`, JSON.stringify(HISTORY))
  t.end()
})

t.test('the messages of a short request keep their JSON, with any formatting', (t) => {
  const short = [
    '[{"role":"user","content":"a"}]',
    '[{"role": "user", "content": "a"}]',
    '[{"role":"user","content":"a","n":9007199254740993,"x":1.0,"y":-0,"z":1e5}]',
    '[{"role":"user","content":"\\u00e9 \\ud83d\\ude42 \\/"}]',
    '[{"role":"user","content":"é 🙂 \\"messages\\":[]"}]',
    '[{"role":"user","role":"system","content":"a"}]',
  ]
  const wrappers = [
    (list: string) => `{"model":"m","messages":${list}}`,
    (list: string) => `{ "messages" : ${list}, "seed":1 }`,
    (list: string) => `{"metadata":{"messages":[{"role":"user","content":"a"}]},"messages":${list}}`,
    (list: string) => `{"messages":${list},"metadata":{"messages":[{"role":"user","content":"a"}]}}`,
  ]
  for (const list of short)
    for (const body of wrappers) {
      const text = body(list)
      const found = read(new RequestReader(), text, { listJson: true })
      t.equal(`[${found.list?.json}]`, list, text)
      t.equal(found.list?.elements, (found.value as Body).messages)
      t.notOk(read(new RequestReader(), text).list, 'it was not requested')
    }
  t.notOk(
    read(new RequestReader(), `{"messages":${'['.repeat(1_500)}${']'.repeat(1_500)}}`, { listJson: true })
      .list,
  )
  t.end()
})

t.test('the buffer of a read body may be reused', (t) => {
  const reader = new RequestReader()
  const lists = [4, 6, 8, 5, 7].map((length) => HISTORY.slice(0, length))
  const read = lists.map((messages) => {
    const bytes = Buffer.from(JSON.stringify({ messages, tools: TOOLS }))
    const { list } = reader.read(bytes, undefined, { listJson: true })
    bytes.fill('?')
    return list!
  })
  for (const [index, { elements, json }] of read.entries()) {
    t.same(elements, lists[index])
    t.equal(`[${json?.toString()}]`, JSON.stringify(lists[index]))
  }
  t.end()
})

t.test('a caller that changes a returned list changes no other', (t) => {
  const reader = new RequestReader()
  parse(reader, { messages: HISTORY }).messages.length = 0
  t.strictSame(parse(reader, { messages: HISTORY }).messages, HISTORY)
  t.end()
})

t.test('JSON with unusual formatting is read as by JSON.parse', (t) => {
  const list = HISTORY.map((each) => JSON.stringify(each)).join()
  const texts = [
    `{"messages":[${list}],"messages":[]}`,
    `{"messages":[${list}],"messages":"x"}`,
    `{"messages":[],"messages":[${list}]}`,
    `{"mess\\u0061ges":[${list}]}`,
    `{"messages":[${list}],"mess\\u0061ges":[1]}`,
    `{"x":{"messages":[${list}]},"messages":[1]}`,
    `{"x":"\\"messages\\":[","messages":[${list}]}`,
    `{"x\\\\":"\\\\","messages":[${list}]}`,
    ` {\n "messages" : [ ${list} ] , "x" : [ ] } `,
    `{"messages":[${list},1,12,"]",[[]],{"a":"}"},null,true,-1e3]}`,
    `{"messages":{"0":"${LONG}${LONG}${LONG}${LONG}${LONG}"}}`,
    `{"__proto__":1,"messages":[${list}],"7":2}`,
    `["messages",[${list}]]`,
    JSON.stringify(list),
  ]
  const reader = new RequestReader()
  for (const text of [...texts, ...texts.toReversed(), ...texts]) {
    t.equal(JSON.stringify(parse(reader, text)), JSON.stringify(JSON.parse(text)), text.slice(0, 60))
  }
  t.end()
})

t.test('invalid JSON is rejected with the message of JSON.parse', (t) => {
  const list = HISTORY.map((each) => JSON.stringify(each)).join()
  const reader = new RequestReader()
  parse(reader, `{"messages":[${list}]}`)
  for (const text of [
    `{"messages":[${list}]`,
    `{"messages":[${list}`,
    `{"messages":[${list}x]}`,
    `{"messages":[${list} ${list}]}`,
    `{"messages":[${list},]}`,
    `{"messages":[${list},,1]}`,
    `{"messages":[${list}]]}`,
    `{"messages":[${list}],}`,
    `{"messages":[${list}],"x":01}`,
    `{"messages":[${list},"\u0001"]}`,
    `{"messages":[${list}]}}`,
  ]) {
    const expected = t.throws(() => JSON.parse(text)) as SyntaxError
    t.throws(() => parse(reader, text), { name: 'SyntaxError', message: expected.message }, text.slice(-20))
  }
  t.end()
})

t.test('a body is read correctly after any other bodies', (t) => {
  const scalar = fc.constantFrom<unknown>(
    1,
    12,
    123,
    -1,
    1.5,
    true,
    null,
    'x',
    '"',
    '\\',
    '],',
    'é',
    '\ud83d\ude42',
    '',
  )
  const element = fc.oneof(
    scalar,
    fc.constantFrom<unknown>(...HISTORY.slice(0, 3), [], {}, [[1], {}], { content: '"}]' }),
  )
  const step = fc.record({
    keep: fc.nat(12),
    add: fc.array(element, { maxLength: 4 }),
    head: fc.constantFrom({}, {}, {}, { model: 'm' }, { tools: TOOLS, messages: 1 }),
    tail: fc.constantFrom({}, {}, {}, { seed: 1 }, { messages: [2] }, { input: [3] }),
    field: fc.constantFrom('messages', 'messages', 'messages', 'input', 'other'),
    indent: fc.constantFrom(0, 0, 0, 0, 1),
    /** Positions at which to cut the text, from its end; mostly without a cut. */
    cut: fc.oneof({ weight: 6, arbitrary: fc.constant(0) }, fc.nat(60)),
  })
  const outcome = (read: () => unknown): string => {
    try {
      return JSON.stringify(read())
    } catch (error) {
      return (error as Error).message
    }
  }
  const isListCorrect = (reader: RequestReader, text: string): boolean => {
    let result: ReturnType<typeof read>
    try {
      result = read(reader, text, { listJson: true })
    } catch {
      return true
    }
    const { value, list } = result
    const { messages, input } = value as Body
    if (list === undefined) return true
    const isSameList = list.elements === messages || list.elements === input
    return isSameList && JSON.stringify(JSON.parse(`[${list.json}]`)) === JSON.stringify(list.elements)
  }
  fc.assert(
    fc.property(fc.array(step, { maxLength: 10 }), (steps) => {
      const reader = new RequestReader()
      let list: unknown[] = HISTORY.slice(0, 5)
      for (const { keep, add, head, tail, field, indent, cut } of steps) {
        list = [...list.slice(0, keep), ...add]
        const members = [head, { [field]: list }, tail].map((part) =>
          JSON.stringify(part, undefined, indent).slice(1, -1),
        )
        const full = `{${members.filter((member) => member !== '').join()}}`
        const text = full.slice(0, full.length - cut)
        const expected = outcome(() => JSON.parse(text))
        if (outcome(() => parse(reader, text)) !== expected) return false
        if (!isListCorrect(reader, text)) return false
      }
      return true
    }),
    { numRuns: limitRuns(2_000) },
  )
  t.end()
})

t.test('numbers of tools and tool calls keep their text, all others are numbers', (t) => {
  const tools = '[{"name":"f","input_schema":{"default":1000.0,"maximum":9007199254740993,"minimum":0.5}}]'
  const use = '{"type":"tool_use","input":{"x":1e2,"tools":[-0,1.50]}}'
  for (const text of ['short', LONG.repeat(5)]) {
    const reader = new RequestReader()
    const messages = [`{"content":"${text}"}`, `{"content":[${use},{"type":"image","input":1.0}],"at":2.0}`]
    const body = (more = '') =>
      `{"temperature":1.0,"tools":${tools},"messages":[${messages.join(' , ')}${more}]}`
    const first = parse(reader, body())
    t.equal(JSON.stringify(first.tools), tools)
    t.match(first, { temperature: 1, tools: [{ input_schema: { minimum: 0.5 } }] })
    t.equal(JSON.stringify(first.messages[1]), `{"content":[${use},{"type":"image","input":1}],"at":2}`)
    const second = parse(reader, body(` , {"content":[ ${use} ]}`))
    t.equal(JSON.stringify(second.messages[2]), `{"content":[${use}]}`)
    if (text === 'short') continue
    t.equal(second.tools, first.tools)
    t.equal(second.messages[1], first.messages[1])
  }
  t.end()
})

t.test('integers above 2^53 keep their text where engines read them, and limits are numbers', (t) => {
  const large = '9007199254740993'
  const exact =
    `"seed":-${large},"response_format":{"schema":{"maximum":${large}}},` +
    `"generationConfig":{"seed":${large},"maxOutputTokens":9007199254740992}`
  for (const text of ['short', LONG.repeat(5)]) {
    for (const wrap of [(fields: string) => fields, (fields: string) => `"body":{${fields}}`]) {
      const json = `{${wrap(`${exact},"max_tokens":${large},"x":${large}`)},"messages":[{"content":"${text}"}]}`
      const value = parse(new RequestReader(), json)
      t.match(JSON.stringify(value), exact)
      const body = (value.body ?? value) as Body
      t.match(body, {
        max_tokens: Number(large),
        x: Number(large),
        generationConfig: { maxOutputTokens: 2 ** 53 },
      })
    }
  }
  t.end()
})

t.test('numbers in template variables keep their text, too, in a request of any length', (t) => {
  const input = '"chat_template_kwargs":{"budget":1.0},"documents":[{"score":1e2}]'
  for (const text of ['short', LONG.repeat(5)]) {
    const value = parse(new RequestReader(), `{${input},"messages":[{"content":"${text}"}]}`)
    t.equal(JSON.stringify(value.chat_template_kwargs), '{"budget":1.0}')
    t.equal(JSON.stringify(value.documents), '[{"score":1e2}]')
    // A worker receives this frame.
    const frame = `{"session_id":"s","messages":[{"content":"${text}"}],"body":{"top_p":1.0,${input}}}`
    t.equal(JSON.stringify(parse(new RequestReader(), frame).body), `{"top_p":1,${input}}`)
  }
  t.end()
})

t.test('a request without a list of messages is read in parts as well', (t) => {
  const reader = new RequestReader()
  const body = { model: 'm', prompt: Array.from({ length: 5_000 }, (_, id) => id), max_tokens: 1 }
  const first = parse(reader, body)
  t.strictSame(first, body)
  t.equal(parse(reader, { ...body, max_tokens: 2 }).prompt, first.prompt)
  t.end()
})

t.test('the latest prompt is kept, and the system prompts of all conversations', (t) => {
  for (const [field, kept] of [
    ['prompt', 1],
    ['prompt_token_ids', 1],
    ['system', 16],
    ['instructions', 16],
  ] as const) {
    const reader = new RequestReader()
    for (let index = 0; index < 20; index += 1) parse(reader, { [field]: `${index} ${LONG.repeat(100)}` })
    const each = 2 * LONG.length * 100
    t.ok(reader.bytes >= kept * each && reader.bytes < (kept + 1) * each, `${field}: ${reader.bytes}`)
  }
  t.end()
})

t.test('values beside tools may be scalars, and deep nesting is read as before', (t) => {
  for (const text of ['short', LONG.repeat(5)]) {
    const odd = { messages: ['"tools" ,{ 1.50', 1.5, null, [{ tools: 2.5 }]], tools: 1.5, text }
    t.strictSame(read(new RequestReader(), odd).value, odd)
  }
  const deep = `{"tools":${'['.repeat(5_000)}1.0${']'.repeat(5_000)},"messages":[]}`
  t.doesNotThrow(() => read(new RequestReader(), deep))
  t.end()
})
