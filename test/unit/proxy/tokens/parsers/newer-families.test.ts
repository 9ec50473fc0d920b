/**
 * The newest families: a response (reasoning, a text, two tool calls) rendered by their own templates is
 * parsed into the same response.
 */
import t from 'tap'
import type { Tool } from '../../../../../src/protocol/canonical/messages.ts'
import { adaptMarkers, findParser } from '../../../../../src/proxy/tokens/parsers/choose-parser.ts'
import { parse, parseBriefly } from './parse.ts'

const properties = {
  text: { type: 'string' },
  count: { type: 'integer' },
  list: { type: 'array', items: { type: 'string' } },
  map: { type: 'object' },
  on: { type: 'boolean' },
}
const tools: Tool[] = [
  { type: 'function', function: { name: 'f', parameters: { type: 'object', properties } } },
  { type: 'function', function: { name: 'g' } },
]
const TEXT = 'a "q" <b>\n\\ c\n'
const ARGS = { text: TEXT, count: 5, list: ['x', 'y'], map: { k: 'v', n: [1.5, null] }, on: true }
const JSON_ARGS = JSON.stringify(ARGS)
const read = (name: string, text: string, startsInReasoning = false) =>
  parseBriefly(findParser(name), text, { tools, startsInReasoning })

function createParser(name: string) {
  const parser = findParser(name).create({ tools })
  return { push: (text: string) => parser.push(text).content }
}

function dsml(name: string, isString: boolean, value: string): string {
  return `<｜DSML｜parameter name="${name}" string="${isString}">${value}</｜DSML｜parameter>\n`
}
function dsml41(...parameter: Parameters<typeof dsml>): string {
  return dsml(...parameter).replaceAll('｜DSML｜parameter', '｜DSML｜ parameter')
}
function kimi(key: string, type: string, value: string): string {
  return `<|open|>argument key="${key}" type="${type}"<|sep|>${value}<|close|>argument<|sep|>`
}
const M3 = (name: string, value: string) => `]<]minimax[>[<${name}>${value}]<]minimax[>[</${name}>`
const ATEM = (name: string, value: string) => `<atem:parameter name="${name}">${value}</atem:parameter>\n`
function step(name: string, args: object): string {
  const parameters = Object.entries(args).map(
    ([key, value]) =>
      `<steptml:parameter name="${key}">${typeof value === 'string' ? value : JSON.stringify(value)}</steptml:parameter>\n`,
  )
  return `<｜tool_call_begin｜>function<｜tool_sep｜><steptml:invoke name="${name}">\n${parameters.join('')}</steptml:invoke><｜tool_call_end｜>`
}

/** Responses as their templates write them, with `args` where the markup expresses less than JSON. */
const WRITTEN: { name: string; text: string; opened?: true; content?: string; args?: object }[] = [
  {
    name: 'deepseek_v4',
    opened: true,
    text: `hm</think>I look.\n\n<｜DSML｜tool_calls>\n<｜DSML｜invoke name="f">\n${dsml('text', true, TEXT)}${dsml('count', false, '5')}${dsml('list', false, '["x", "y"]')}${dsml('map', false, '{"k": "v", "n": [1.5, null]}')}${dsml('on', false, 'true')}</｜DSML｜invoke>\n<｜DSML｜invoke name="g">\n\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>`,
  },
  {
    name: 'deepseek_v41',
    opened: true,
    text: `hm</think>I look.\n\n<｜DSML｜ calls>\n<｜DSML｜ invoke name="f">\n${dsml41('text', true, TEXT)}${dsml41('count', false, '5')}${dsml41('list', false, '["x", "y"]')}${dsml41('map', false, '{"k": "v", "n": [1.5, null]}')}${dsml41('on', false, 'true')}</｜DSML｜ invoke>\n<｜DSML｜ invoke name="g">\n\n</｜DSML｜ invoke>\n</｜DSML｜ calls>`,
  },
  {
    name: 'kimi_k3',
    opened: true,
    text: `hm<|close|>think<|sep|><|open|>response<|sep|>I look.<|close|>response<|sep|><|open|>tools<|sep|><|open|>call tool="f" index="1"<|sep|>${kimi('text', 'string', TEXT)}${kimi('count', 'number', '5')}${kimi('list', 'array', '["x", "y"]')}${kimi('map', 'object', '{"k": "v", "n": [1.5, null]}')}${kimi('on', 'boolean', 'true')}<|close|>call<|sep|><|open|>call tool="g" index="2"<|sep|><|close|>call<|sep|><|close|>tools<|sep|><|close|>message<|sep|>`,
  },
  {
    name: 'hy_v4',
    opened: true,
    text: `hm</think>I look.<tool_calls><tool_call>f${Object.entries(ARGS)
      .map(([key, value]) => [key, typeof value === 'string' ? value : JSON.stringify(value)])
      .map(([key, value]) => `<arg_key>${key}</arg_key><arg_value>${value}</arg_value>`)
      .join('')}</tool_call><tool_call>g</tool_call></tool_calls>`,
  },
  {
    name: 'minimax_m3',
    text: `<mm:think>hm</mm:think>I look.]<]minimax[>[<tool_call>\n]<]minimax[>[<invoke name="f">${M3('text', TEXT)}${M3('count', '5')}${M3('list', M3('item', 'x') + M3('item', 'y'))}${M3('map', M3('k', 'v') + M3('n', M3('item', '1.5') + M3('item', '')))}${M3('on', 'true')}]<]minimax[>[</invoke>\n]<]minimax[>[<invoke name="g">]<]minimax[>[</invoke>\n]<]minimax[>[</tool_call>`,
    args: { ...ARGS, map: { k: 'v', n: ['1.5', ''] } },
  },
  {
    name: 'gemma4',
    text: `<|channel>thought\nhm<channel|>I look.<|tool_call>call:f{count:5,list:[<|"|>x<|"|>,<|"|>y<|"|>],map:{k:<|"|>v<|"|>,n:[1.5,None]},on:true,text:<|"|>${TEXT}<|"|>}<tool_call|><|tool_call>call:g{}<tool_call|>`,
    args: { count: 5, list: ['x', 'y'], map: ARGS.map, on: true, text: TEXT },
  },
  {
    name: 'minicpm5',
    opened: true,
    text: `hm</think>\n\nI look.\n<function name="f"><param name="text"><![CDATA[${TEXT}]]></param><param name="count">5</param><param name="list">['x', 'y']</param><param name="map">{'k': 'v', 'n': [1.5, None]}</param><param name="on">True</param></function>\n<function name="g"></function>`,
    content: '\n\nI look.',
  },
  {
    name: 'solar_open',
    text: `<|think|>hm<|end|><|begin|>assistant<|content|>I look.<|begin|>assistant<|tool_calls|><|tool_call:begin|>c1<|tool_call:name|>f<|tool_call:args|>${JSON_ARGS}<|tool_call:end|><|tool_call:begin|>c2<|tool_call:name|>g<|tool_call:args|>{}<|tool_call:end|><|calls|>`,
  },
  {
    name: 'minimax_m1',
    text: `<think>hm</think>I look.<tool_calls>\n{"name": "f", "arguments": ${JSON_ARGS}}\n{"name": "g", "arguments": {}}\n</tool_calls>`,
  },
  {
    name: 'olmo3',
    opened: true,
    text: `hm</think>I look.\n\n<function_calls>\nf(text='a "q" <b>\\n\\\\ c\\n', count=5, list=['x', 'y'], map={'k': 'v', 'n': [1.5, None]}, on=True)\ng()\n</function_calls>`,
  },
  {
    name: 'ernie45',
    opened: true,
    text: `hm</think>I look.\n\n<tool_call>\n{"name": "f", "arguments": ${JSON_ARGS}}\n</tool_call>\n<tool_call>\n{"name": "g", "arguments": {}}\n</tool_call>\n`,
  },
  {
    name: 'internlm',
    text: `<think>hm</think>I look.<|action_start|><|plugin|>\n{"name": "f", "parameters": ${JSON_ARGS}}<|action_end|>\n<|action_start|> <|plugin|>\n{"name": "g", "parameters": {}}<|action_end|>`,
  },
  {
    name: 'dots',
    opened: true,
    text: `hm</think>I look.\n\n<dots_function_call>\n<invoke name="f">\n${Object.entries(ARGS)
      .map(([key, value]) => [key, typeof value === 'string' ? value : JSON.stringify(value)])
      .map(([key, value]) => `<parameter name="${key}">${value}</parameter>\n`)
      .join('')}</invoke>\n<invoke name="g">\n</invoke>\n</dots_function_call>`,
  },
  {
    name: 'step3',
    opened: true,
    text: `hm</think>I look.\n\n<｜tool_calls_begin｜>\n${step('f', { ...ARGS })}\n${step('g', {})}\n<｜tool_calls_end｜>`,
  },
  {
    name: 'apriel',
    opened: true,
    text: `hm[BEGIN FINAL RESPONSE]\nI look.\n<tool_calls>[{"name": "f", "arguments": ${JSON_ARGS}}, {"name": "g", "arguments": {}}]</tool_calls>`,
    content: '\nI look.',
  },
  {
    name: 'muse_glimmer',
    text: ` to=self<|message|>hm<|eom|><|start|>assistant to=user<|message|>I look.<|eom|><|start|>assistant to=f<|message|><atem:function_calls>\n<atem:invoke name="f">\n${ATEM('text', TEXT)}${ATEM('count', '5')}${ATEM('list', '["x", "y"]')}${ATEM('map', '{"k": "v", "n": [1.5, null]}')}${ATEM('on', 'true')}</atem:invoke>\n</atem:function_calls><|eom|><|start|>assistant to=g<|message|><atem:function_calls>\n<atem:invoke name="g.g">\n</atem:invoke>\n</atem:function_calls><|eot|>`,
  },
]

for (const { name, text, opened = false, content = 'I look.', args = ARGS } of WRITTEN) {
  t.test(`${name}: reasoning, content and tool calls`, async (t) => {
    const {
      reasoning,
      content: found,
      toolCalls,
    } = parse(findParser(name), text, { tools, startsInReasoning: opened })
    t.same({ reasoning, content: found }, { reasoning: 'hm', content })
    const calls = toolCalls.map((call) => [call.function.name, JSON.parse(call.function.arguments)])
    t.same(calls, [
      ['f', args],
      ['g', {}],
    ])
  })
}

t.test('hy_v4: the markers have the suffix of the checkpoint', async (t) => {
  const family = adaptMarkers(findParser('hy_v4'), ['<|endoftext|>', '<tool_calls:6124c78e>', '</think:x>'])
  const text =
    'a</think> <tool_call>g</tool_call></think:6124c78e>I look.<tool_calls:6124c78e><tool_call:6124c78e>f' +
    '<arg_key:6124c78e>text</arg_key:6124c78e><arg_value:6124c78e></arg_value></arg_value:6124c78e>' +
    '</tool_call:6124c78e></tool_calls:6124c78e>'
  t.same(parseBriefly(family, text, { tools, startsInReasoning: true }), {
    reasoning: 'a</think> <tool_call>g</tool_call>',
    content: 'I look.',
    calls: ['f({"text": "</arg_value>"})'],
  })
  t.equal(adaptMarkers(findParser('glm45'), ['<tool_calls:x>']), findParser('glm45'))
})

t.test('hy_v4: a tool call in the reasoning is reasoning', async (t) => {
  const call = '<tool_calls><tool_call>g</tool_call></tool_calls>'
  t.same(read('hy_v4', `${call}</think>${call}`, true), { reasoning: call, calls: ['g({})'] })
})

t.test('gigachat3: one tool call, after a role or a token', async (t) => {
  const call = '{"name": "f", "arguments": {"count": 5}}'
  for (const opener of ['<|message_sep|>\n\nfunction call<|role_sep|>\n', '<|function_call|>']) {
    t.same(read('gigachat3', `I look.${opener}${call}<|message_sep|>\n\n`), {
      content: 'I look.',
      calls: ['f({"count": 5})'],
    })
  }
})

t.test('command_r_plus: a list of actions in a fence', async (t) => {
  const text =
    'Plan: I look.\nAction:\n```json\n[\n    {\n        "tool_name": "f",\n        "parameters": {"count": 5}\n    }\n]```'
  t.same(read('command_r_plus', text), { content: 'Plan: I look.', calls: ['f({"count": 5})'] })
})

t.test('functionary: each tool call follows its name', async (t) => {
  t.same(
    read(
      'functionary_v3_1',
      'I look.<function=f>{"text": "</function>"}</function><function=g>{}</function>',
    ),
    {
      content: 'I look.',
      calls: ['f({"text": "</function>"})', 'g({})'],
    },
  )
  t.same(read('functionary_v3_2', 'all\nI look: >>> 1>>>f\n{"text": ">>>g\\n"}>>>g\n{}'), {
    content: 'I look: >>> 1',
    calls: ['f({"text": ">>>g\\n"})', 'g({})'],
  })
})

t.test('pythonic, llama4_pythonic: a list of calls is the complete output', async (t) => {
  const list = `[f(text='it\\'s \\x41', count=-5), g()]`
  const calls = ['f({"text": "it\'s A", "count": -5})', 'g({})']
  t.same(read('pythonic', `${list}\n`), { calls })
  t.same(read('llama4_pythonic', list), { calls })
  t.same(read('llama4_pythonic', `<|python_start|>${list}<|python_end|>`), { calls })
  const { push } = createParser('pythonic')
  t.equal(push('[1] see '), '[1] see ', 'text in brackets is sent immediately')
})

t.test('longcat: tool calls between its own markers', async (t) => {
  t.same(
    read(
      'longcat',
      'I look.\n<longcat_tool_call>\n{"name": "f", "arguments": {"count": 5}}\n</longcat_tool_call>',
    ),
    { content: 'I look.', calls: ['f({"count": 5})'] },
  )
})

t.test('ernie45: content is in a response', async (t) => {
  t.same(read('ernie45', 'hm</think>\n\n<response>\nI look.\n</response>\n', true), {
    reasoning: 'hm',
    content: 'I look.',
  })
})

t.test('xlam: an array is the complete output, or in a block', async (t) => {
  const array = '[{"name": "f", "arguments": {"count": 5}}, {"name": "g", "arguments": {}}]'
  const calls = ['f({"count": 5})', 'g({})']
  for (const text of [array, ` ${array}\n`]) t.same(read('xlam', text), { calls })
  for (const block of ['```json\n#\n```', '<tool_call>#</tool_call>', '[TOOL_CALLS]#'])
    t.same(read('xlam', `I look.\n${block.replace('#', array)}`), { content: 'I look.', calls }, block)
  const { push } = createParser('xlam')
  t.equal(push('[1] see '), '[1] see', 'text in brackets is sent immediately')
})

t.test('text that is not a tool call stays text', async (t) => {
  for (const [name, text] of [
    ['pythonic', '[f(a=1)] is a call'],
    ['pythonic', 'f(a=1)'],
    ['pythonic', '[f(a=1'],
    ['llama4_pythonic', '<|python_start|>[f(a=1)'.slice(0, -1)],
    ['olmo3', '<function_calls>\nf(a=b)\n</function_calls>'],
    ['olmo3', '<function_calls></function_calls>'],
    ['xlam', '[{"name": "f", "arguments": {}}] is a call'],
    ['xlam', '[{"name": "f"}]'],
    ['xlam', '```json\n{"a": 1}\n```'],
    ['internlm', '<|action_start|><|plugin|>\n{"name": "f", "parameters": {'],
    ['longcat', '<longcat_tool_call>\n{"name": "f"}\n</longcat_tool_call>'],
    [
      'step3',
      '<｜tool_call_begin｜>function<｜tool_sep｜><steptml:invoke name="f">\n<steptml:parameter name="a">1',
    ],
    ['gemma4', '<|tool_call>call:f{a:1<tool_call|>'],
    ['gemma4', '<|tool_call>f{}<tool_call|>'],
    ['gemma4', '<|tool_call>call:f{a:[}]}<tool_call|>'],
    ['gemma4', '<|tool_call>call:f{:}<tool_call|>'],
    ['gemma4', '<|tool_call>call:f{a:{]}<tool_call|>'],
    ['minimax_m3', ']<]minimax[>[<invoke name="f">]<]minimax[>[<a>1]<]minimax[>[</b>]<]minimax[>[</invoke>'],
    ['kimi_k3', '<|open|>call index="1"<|sep|><|close|>call<|sep|>'],
    ['solar_open', '<|tool_call:begin|>x<|tool_call:args|>{}<|tool_call:end|>'],
    ['minimax_m1', '<tool_calls>{"name": "f"}</tool_calls>'],
    ['functionary_v3_1', '<function=f>[]</function>'],
    ['functionary_v3_2', 'h\n{}'],
  ] as const) {
    t.same(read(name, text), { content: text }, text)
  }
})

t.test('muse_glimmer: tool-call markup in reasoning or in content is text', async (t) => {
  const call = '<atem:invoke name="f">\n</atem:invoke>'
  t.same(
    read('muse_glimmer', ` to=self<|message|>${call}<|eom|><|start|>assistant<|message|>${call}<|eot|>`),
    {
      reasoning: call,
      content: call,
    },
  )
  t.same(read('muse_glimmer', 'No header.'), { content: 'No header.' })
})
