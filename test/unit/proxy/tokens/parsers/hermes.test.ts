import t from 'tap'
import { hermes } from '../../../../../src/proxy/tokens/parsers/json-families.ts'
import { assertCutsChangeNothing, parse, parseBriefly, TOOLS } from './parse.ts'

const call = (body: string) => `<tool_call>\n${body}\n</tool_call>`

t.test('a call has the arguments that the model wrote, to the last space', async (t) => {
  const written = '{"b": 1.0,  "a": [1,2], "s": "\\u00e9 }"}'
  const { toolCalls, content } = parse(hermes, call(`{"name": "f", "arguments": ${written}}`))
  t.same(toolCalls, [{ id: 'id_0', type: 'function', function: { name: 'f', arguments: written } }])
  t.equal(content, '')
})

t.test('several calls, and text before and behind them', async (t) => {
  const first = call('{"name": "f", "arguments": {}}')
  const second = call('{"arguments": {"x": 1}, "name": "g"}')
  t.same(parseBriefly(hermes, `I look.\n${first}\n${second}`), {
    content: 'I look.',
    calls: ['f({})', 'g({"x": 1})'],
  })
  t.same(parseBriefly(hermes, `${first}\nDone.`), { content: '\nDone.', calls: ['f({})'] })
})

t.test('text without markup is content as it is, white space included', async (t) => {
  t.same(parseBriefly(hermes, ' a < b \n<tool> \n'), { content: ' a < b \n<tool> \n' })
  t.same(parseBriefly(hermes, ''), {})
})

t.test('a malformed call stays visible, and a good one behind it is still found', async (t) => {
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

t.test('a call whose closing marker is missing at the end counts if it is whole', async (t) => {
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

t.test('a prompt that opened the reasoning leaves only its end to the model', async (t) => {
  const options = { startsInReasoning: true }
  t.same(parseBriefly(hermes, 'hm\n</think>\n\nHi', options), { reasoning: 'hm\n', content: '\n\nHi' })
  t.same(parseBriefly(hermes, 'cut off', options), { reasoning: 'cut off' })
  const again = { reasoning: 'hm', content: 'Hi' }
  t.same(
    parseBriefly(hermes, '<think>hm</think>Hi', options),
    again,
    'and one that opens it again, its begin',
  )
})

t.test('a call ends the reasoning that was not closed before it', async (t) => {
  const written = call('{"name": "f", "arguments": {}}')
  const read = { reasoning: 'I look.\n', calls: ['f({})'] }
  t.same(parseBriefly(hermes, `<think>I look.\n${written}`), read)
  t.same(parseBriefly(hermes, `I look.\n${written}`, { startsInReasoning: true }), read)
  t.same(parseBriefly(hermes, `<think>I look.\n${written}</think>`), read, 'closed behind it')
  const offered = { reasoning: `I look.\n${written}` }
  t.same(
    parseBriefly(hermes, `<think>I look.\n${written}</think>`, { tools: null }),
    offered,
    'no tools: no call',
  )
})

t.test('a reasoning marker inside content is content', async (t) => {
  t.same(parseBriefly(hermes, 'Write <think> so.</think>'), { content: 'Write <think> so.</think>' })
})

t.test('without tools in the request nothing is a call', async (t) => {
  const text = call('{"name": "f", "arguments": {}}')
  t.same(parseBriefly(hermes, text, { tools: [] }), { content: text })
  t.same(parseBriefly(hermes, text, { tools: null }), { content: text })
})

t.test('calls have ids of their own', async (t) => {
  const text = call('{"name": "f", "arguments": {}}').repeat(2)
  const parser = hermes.create({ tools: TOOLS })
  const ids = parser.push(text).toolCalls?.map(({ id }) => id)
  t.equal(new Set(ids).size, 2)
})

t.test('text is shown as soon as it is clear that it is text', async (t) => {
  const parser = hermes.create({ tools: TOOLS })
  t.same(parser.push('Hello <tool'), { content: 'Hello' })
  t.same(parser.push('box> '), { content: ' <toolbox>' })
  t.same(parser.push('<tool_call>\n{"name": "f", "arguments": {'), {})
  t.match(parser.push('}}\n</tool_call>'), {
    toolCalls: [{ index: 0, function: { name: 'f', arguments: '{}' } }],
  })
  t.same(parser.finish(), {})
})

t.test('how the text is cut changes nothing', async () => {
  assertCutsChangeNothing(hermes, [
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

t.test('a long call is read in one go, however small the pieces', async (t) => {
  const written = JSON.stringify({ text: 'x\n'.repeat(500_000) })
  const parser = hermes.create({ tools: TOOLS })
  parser.push('<tool_call>\n{"name": "f", "arguments": ')
  for (let from = 0; from < written.length; from += 100) parser.push(written.slice(from, from + 100))
  const delta = parser.push('}\n</tool_call>')
  t.equal(delta.toolCalls?.[0]?.function?.arguments, written)
})
