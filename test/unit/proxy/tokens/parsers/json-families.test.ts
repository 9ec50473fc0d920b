/** The families other than Hermes that write arguments as JSON: DeepSeek, Kimi, Mistral, Llama 3. */
import t from 'tap'
import { deepseek } from '../../../../../src/proxy/tokens/parsers/deepseek.ts'
import {
  apertus,
  gigaChat3,
  granite,
  hermes,
  hunyuanA13b,
  kimi,
  phi4Mini,
} from '../../../../../src/proxy/tokens/parsers/json-families.ts'
import { llama3 } from '../../../../../src/proxy/tokens/parsers/llama3.ts'
import { mistral } from '../../../../../src/proxy/tokens/parsers/mistral.ts'
import { assertSameForAnyChunks, parse, parseBriefly, TOOLS } from './parse.ts'

const ARGUMENTS =
  '{"b": 1.0,  "a": "}; \\" [TOOL_CALLS] <|python_tag|> <｜tool▁call▁end｜> <|tool_call_end|>"}'

const v3Call = (args: string) =>
  `<｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n\`\`\`json\n${args}\n\`\`\`<｜tool▁call▁end｜>`
const v31Call = (args: string) => `<｜tool▁call▁begin｜>f<｜tool▁sep｜>${args}<｜tool▁call▁end｜>`
const inCalls = (...calls: string[]) => `<｜tool▁calls▁begin｜>${calls.join('\n')}<｜tool▁calls▁end｜>`
const kimiCall = (args: string, id = 'functions.f:0') =>
  `<|tool_call_begin|>${id}<|tool_call_argument_begin|>${args}<|tool_call_end|>`
const inSection = (...calls: string[]) =>
  `<|tool_calls_section_begin|>${calls.join('')}<|tool_calls_section_end|>`

t.test('deepseek: tool calls of V3 and of V3.1, with the arguments as written', async (t) => {
  for (const write of [v3Call, v31Call]) {
    t.same(parseBriefly(deepseek, inCalls(write(ARGUMENTS))), { calls: [`f(${ARGUMENTS})`] })
    const text = `<think>hm</think>I look.\n\n${inCalls(write('{}'), write('{"x": 1}'))}`
    t.same(parseBriefly(deepseek, text), {
      reasoning: 'hm',
      content: 'I look.',
      calls: ['f({})', 'f({"x": 1})'],
    })
  }
})

t.test('deepseek: a prompt that opened the reasoning', async (t) => {
  t.same(parseBriefly(deepseek, 'hm</think>Hi', { startsInReasoning: true }), {
    reasoning: 'hm',
    content: 'Hi',
  })
})

t.test('kimi: tool calls keep the ids that the model gives them', async (t) => {
  const text = `I look.${inSection(kimiCall(ARGUMENTS), kimiCall('{}', ' functions.ns.g:1 '))}`
  const { content, toolCalls } = parse(kimi, text)
  t.equal(content, 'I look.')
  t.same(toolCalls, [
    { id: 'functions.f:0', type: 'function', function: { name: 'f', arguments: ARGUMENTS } },
    { id: 'functions.ns.g:1', type: 'function', function: { name: 'ns.g', arguments: '{}' } },
  ])
})

t.test('deepseek, kimi: text that is not a tool call stays visible with all its markers', async (t) => {
  for (const text of [inCalls(v3Call('{"a":')), inCalls(v31Call('5')), inCalls('<｜tool▁call▁begin｜>f{}')]) {
    t.same(parseBriefly(deepseek, text), { content: text })
  }
  for (const text of [
    inSection(kimiCall('{"a":')),
    inSection(kimiCall('{}', 'f')),
    inSection('<|tool_call_begin|>f:0{}'),
  ]) {
    t.same(parseBriefly(kimi, text), { content: text })
  }
})

t.test('mistral: tool calls of all tokenizer versions', async (t) => {
  const array = `[TOOL_CALLS][{"name": "f", "arguments": ${ARGUMENTS}}, {"name": "g", "arguments": {}}]`
  t.same(parseBriefly(mistral, array), { calls: [`f(${ARGUMENTS})`, 'g({})'] })
  t.same(parseBriefly(mistral, `I look.[TOOL_CALLS]f${ARGUMENTS}[TOOL_CALLS]g{}`), {
    content: 'I look.',
    calls: [`f(${ARGUMENTS})`, 'g({})'],
  })
  const { toolCalls } = parse(
    mistral,
    `[TOOL_CALLS]f[CALL_ID]abcdefghi[ARGS]${ARGUMENTS}[TOOL_CALLS]g[ARGS]{}`,
  )
  t.match(toolCalls, [{ id: 'abcdefghi' }, { id: 'id_0', function: { name: 'g', arguments: '{}' } }])
})

t.test('mistral: ids have the form that its templates accept', async (t) => {
  const parser = mistral.create({ tools: TOOLS })
  t.match(parser.push('[TOOL_CALLS]f{}').toolCalls?.[0]?.id, /^[a-z0-9]{9}$/)
})

t.test('mistral: an id that its templates reject is replaced', async (t) => {
  const getId = (text: string) => mistral.create({ tools: TOOLS }).push(text).toolCalls![0]!.id
  const write = (id: string) => `[TOOL_CALLS][{"name": "f", "arguments": {}, "id": "${id}"}]`
  t.equal(getId(write('a1B2c3D4e')), 'a1B2c3D4e')
  t.equal(getId('[TOOL_CALLS]f[CALL_ID]a1B2c3D4e[ARGS]{}'), 'a1B2c3D4e')
  for (const text of [write('call_1'), '[TOOL_CALLS]f[CALL_ID]x[ARGS]{}']) t.match(getId(text), /^\w{9}$/)
})

t.test('mistral: text that is not a tool call stays visible; reasoning has its own markers', async (t) => {
  for (const text of [
    '[TOOL_CALLS]',
    '[TOOL_CALLS][{"name": "f"}]',
    '[TOOL_CALLS]f',
    '[TOOL_CALLS]f{"a": ',
    '[TOOL_CALLS][1]',
  ]) {
    t.same(parseBriefly(mistral, text), { content: text })
  }
  t.same(parseBriefly(mistral, '[THINK]hm[/THINK]Hi'), { reasoning: 'hm', content: 'Hi' })
})

t.test('llama3: a response that consists of tool calls', async (t) => {
  const call = `{"name": "f", "parameters": ${ARGUMENTS}}`
  t.same(parseBriefly(llama3, call), { calls: [`f(${ARGUMENTS})`] })
  t.same(
    parseBriefly(llama3, ` <|python_tag|>${call}; {"type": "function", "name": "g", "arguments": {}} `),
    {
      calls: [`f(${ARGUMENTS})`, 'g({})'],
    },
  )
})

t.test('llama3: any other response is text', async (t) => {
  const texts = [
    'Hello {"name": "f", "parameters": {}}',
    '{"name": "f", "parameters": {}} and more',
    '{"name": "f"}',
    '{"name": "f", "parameters": {}}; {"name": "g"}',
    '{"answer": 42}',
    '{',
    '<|python_tag|>brave_search.call(query="x")',
    '<|python',
    '',
  ]
  for (const text of texts) t.same(parse(llama3, text), { content: text, reasoning: '', toolCalls: [] }, text)
  const call = '{"name": "f", "parameters": {}}'
  t.same(parseBriefly(llama3, call, { tools: [] }), { content: call })
})

t.test('llama3: a response in JSON is sent on arrival once it cannot be a tool call', async (t) => {
  const parser = llama3.create({ tools: TOOLS })
  t.same(parser.push('{"ans'), {})
  t.same(parser.push('wer": '), { content: '{"answer": ' })
  t.same(parser.push('42}'), { content: '42}' })
})

const FRAGMENTS = [
  '\n',
  ' ',
  'text',
  'f',
  '{}',
  '{"a": "',
  '"}',
  '"name": "f", ',
  ';',
  '{"name": "f", "parameters": {}}',
]

for (const [family, calls] of [
  [deepseek, [inCalls(v3Call(ARGUMENTS)), inCalls(v31Call('{}'))]],
  [kimi, [inSection(kimiCall(ARGUMENTS))]],
  [mistral, [`[TOOL_CALLS]f${ARGUMENTS}`, '[TOOL_CALLS][{"name": "f", "arguments": {}}]']],
  [llama3, ['{"name": "f", "arguments": {}}']],
] as const) {
  t.test(`${family.name}: for any chunks of the text, the result is the same`, async () => {
    assertSameForAnyChunks(family, [...family.keepTokens, ...calls, ...FRAGMENTS])
  })
}

/** Arguments that are not an object. */
const OTHERS = ['"x"', '"{\\"a\\": 1}"', '3', 'null', '[1]', 'true']
const DECODED = ['x', '{"a": 1}', '3', 'null', '[1]', 'true']
const createCallJson = (args: string) => `{"name": "f", "arguments": ${args}}`

t.test('arguments that are not an object are those that the parsers of vLLM 0.33 report', async (t) => {
  const cases = [
    [hermes, (args: string) => `<tool_call>\n${createCallJson(args)}\n</tool_call>`, OTHERS],
    [llama3, (args: string) => `{"name": "f", "parameters": ${args}}`, OTHERS],
    [phi4Mini, (args: string) => `functools[${createCallJson(args)}]`, OTHERS],
    [apertus, (args: string) => `<|tools_prefix|>[{"f": ${args}}]<|tools_suffix|>`, OTHERS],
    [kimi, (args: string) => inSection(kimiCall(args)), OTHERS],
    [deepseek, (args: string) => inCalls(v3Call(args)), OTHERS],
    [granite, (args: string) => `<|tool_call|>[${createCallJson(args)}]`, DECODED],
    [mistral, (args: string) => `[TOOL_CALLS][${createCallJson(args)}]`, DECODED.with(3, '{}')],
  ] as const
  for (const [family, write, expected] of cases) {
    const calls = OTHERS.map((args) => parseBriefly(family, write(args)).calls)
    t.strictSame(
      calls,
      expected.map((args) => [`f(${args})`]),
      family.name,
    )
  }
  for (const args of ['"x"', '[1]'])
    t.strictSame(parseBriefly(deepseek, inCalls(v31Call(args))), { calls: [`f(${args})`] })
})

t.test('hunyuan_a13b: only a string is accepted besides an object; gigachat3: only an object', async (t) => {
  const hunyuan = (args: string) => `<tool_calls>[${createCallJson(args)}]</tool_calls>`
  t.strictSame(parseBriefly(hunyuanA13b, hunyuan('"x"')), { calls: ['f(x)'] })
  t.strictSame(parseBriefly(hunyuanA13b, hunyuan('3')), { content: hunyuan('3') })
  const giga = `<|function_call|>${createCallJson('"x"')}<|message_sep|>`
  t.strictSame(parseBriefly(gigaChat3, giga), { content: giga })
})
