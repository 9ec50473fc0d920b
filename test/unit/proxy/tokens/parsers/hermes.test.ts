import t from 'tap'
import { hermes } from '../../../../../src/proxy/tokens/parsers/json-families.ts'
import { assertSameForAnyChunks, parse, parseBriefly, TOOLS } from './parse.ts'

const call = (body: string) => `<tool_call>\n${body}\n</tool_call>`

t.test('a tool call has the arguments that the model wrote, including white space', async (t) => {
  const written = '{"b": 1.0,  "a": [1,2], "s": "\\u00e9 }"}'
  const { toolCalls, content } = parse(hermes, call(`{"name": "f", "arguments": ${written}}`))
  t.same(toolCalls, [{ id: 'id_0', type: 'function', function: { name: 'f', arguments: written } }])
  t.equal(content, '')
})

t.test('several tool calls, with text before and after them', async (t) => {
  const first = call('{"name": "f", "arguments": {}}')
  const second = call('{"arguments": {"x": 1}, "name": "g"}')
  t.same(parseBriefly(hermes, `I look.\n${first}\n${second}`), {
    content: 'I look.',
    calls: ['f({})', 'g({"x": 1})'],
  })
  t.same(parseBriefly(hermes, `${first}\nDone.`), { content: '\nDone.', calls: ['f({})'] })
})

t.test('text without markup is content, including white space', async (t) => {
  t.same(parseBriefly(hermes, ' a < b \n<tool> \n'), { content: ' a < b \n<tool> \n' })
  t.same(parseBriefly(hermes, ''), {})
})

t.test('a malformed tool call stays visible, and a valid one after it is still found', async (t) => {
  for (const body of [
    '{"name": "f", "arguments": {}',
    '{"name": "f"}',
    '{"name": 1, "arguments": {}}',
    '[]',
    'f()',
    '',
  ]) {
    t.same(parseBriefly(hermes, call(body)), { content: call(body) }, body)
  }
  const good = call('{"name": "f", "arguments": {}}')
  const unbalanced = call('{"name": "f", "arguments": {"a": "}}')
  t.same(parseBriefly(hermes, unbalanced + good), { content: unbalanced, calls: ['f({})'] })
})

t.test('a closing marker inside a string of the arguments is part of the string', async (t) => {
  const written = '{"text": "<tool_call>\\n</tool_call> \\"x\\" </tool_call>"}'
  t.same(parseBriefly(hermes, call(`{"name": "f", "arguments": ${written}}`)), { calls: [`f(${written})`] })
})

t.test('a tool call without its closing marker at the end counts if it is complete', async (t) => {
  t.same(parseBriefly(hermes, '<tool_call>\n{"name": "f", "arguments": {}}'), { calls: ['f({})'] })
  const cutOff = '<tool_call>\n{"name": "f", "argu'
  t.same(parseBriefly(hermes, cutOff), { content: cutOff })
})

t.test("reasoning stands between its markers, and white space around it is the model's own", async (t) => {
  const text = '<think>\nI should\n\nlook.\n</think>\n\n  Hello'
  t.same(parseBriefly(hermes, text), { reasoning: '\nI should\n\nlook.\n', content: '\n\n  Hello' })
  t.same(parseBriefly(hermes, '<think>\n\n</think>\n\nHi'), { reasoning: '\n\n', content: '\n\nHi' })
  const withCall = `<think>x</think>\n\n${call('{"name": "f", "arguments": {}}')}`
  t.same(parseBriefly(hermes, withCall), { reasoning: 'x', calls: ['f({})'] })
})

t.test('after a prompt that opened the reasoning, the model only closes it', async (t) => {
  const options = { startsInReasoning: true }
  t.same(parseBriefly(hermes, 'hm\n</think>\n\nHi', options), { reasoning: 'hm\n', content: '\n\nHi' })
  t.same(parseBriefly(hermes, 'cut off', options), { reasoning: 'cut off' })
  const second = { reasoning: 'hm', content: 'Hi' }
  t.same(
    parseBriefly(hermes, '<think>hm</think>Hi', options),
    second,
    'and if the model opens it again, the marker is removed',
  )
})

t.test('a tool call ends unclosed reasoning before it', async (t) => {
  const written = call('{"name": "f", "arguments": {}}')
  const read = { reasoning: 'I look.\n', calls: ['f({})'] }
  t.same(parseBriefly(hermes, `<think>I look.\n${written}`), read)
  t.same(parseBriefly(hermes, `I look.\n${written}`, { startsInReasoning: true }), read)
  t.same(parseBriefly(hermes, `<think>I look.\n${written}</think>`), read, 'closed after it')
  const offered = { reasoning: `I look.\n${written}` }
  t.same(
    parseBriefly(hermes, `<think>I look.\n${written}</think>`, { tools: null }),
    offered,
    'no tools: no tool call',
  )
})

t.test('a reasoning marker inside content is content', async (t) => {
  t.same(parseBriefly(hermes, 'Write <think> so.</think>'), { content: 'Write <think> so.</think>' })
})

t.test('without tools in the request, no text is a tool call', async (t) => {
  const text = call('{"name": "f", "arguments": {}}')
  t.same(parseBriefly(hermes, text, { tools: [] }), { content: text })
  t.same(parseBriefly(hermes, text, { tools: null }), { content: text })
})

t.test('tool calls have generated ids', async (t) => {
  const text = call('{"name": "f", "arguments": {}}').repeat(2)
  const parser = hermes.create({ tools: TOOLS })
  const ids = parser.push(text).toolCalls?.map(({ id }) => id)
  t.equal(new Set(ids).size, 2)
})

t.test('text is sent as soon as it cannot be markup', async (t) => {
  const parser = hermes.create({ tools: TOOLS })
  t.same(parser.push('Hello <tool'), { content: 'Hello' })
  t.same(parser.push('box> '), { content: ' <toolbox>' })
  t.same(parser.push('<tool_call>\n{"name": "f", "arguments": {'), {})
  t.match(parser.push('}}\n</tool_call>'), {
    toolCalls: [{ index: 0, function: { name: 'f', arguments: '{}' } }],
  })
  t.same(parser.finish(), {})
})

t.test('for any chunks of the text, the result is the same', async () => {
  assertSameForAnyChunks(hermes, [
    '<think>',
    '</think>',
    '<tool_call>',
    '</tool_call>',
    '\n',
    ' ',
    'text',
    '<',
    '{"name": "f", "arguments": {}}',
    '{"name": "f", "arguments": {"a": "',
    '"}}',
    call('{"name": "f", "arguments": {"a": "</tool_call>"}}'),
  ])
})

t.test('a long tool call is read in linear time, for any size of chunks', async (t) => {
  const written = JSON.stringify({ text: 'x\n'.repeat(500_000) })
  const parser = hermes.create({ tools: TOOLS })
  parser.push('<tool_call>\n{"name": "f", "arguments": ')
  for (let from = 0; from < written.length; from += 100) parser.push(written.slice(from, from + 100))
  const delta = parser.push('}\n</tool_call>')
  t.equal(delta.toolCalls?.[0]?.function?.arguments, written)
})
