/** The families that write arguments as tagged text: Qwen3-Coder and GLM. */
import t from 'tap'
import type { Tool } from '../../../../../src/protocol/canonical/messages.ts'
import { glm } from '../../../../../src/proxy/tokens/parsers/keyed-families.ts'
import {
  mimo,
  miniCpm5,
  minimaxM2,
  qwen3Coder,
} from '../../../../../src/proxy/tokens/parsers/tagged-families.ts'
import { getTypes, toJsonValue } from '../../../../../src/proxy/tokens/parsers/text-arguments.ts'
import { assertSameForAnyChunks, parseBriefly } from './parse.ts'

const tools: Tool[] = [
  {
    type: 'function',
    function: {
      name: 'f',
      parameters: {
        type: 'object',
        properties: {
          text: { type: 'string' },
          count: { type: 'integer' },
          ratio: { type: 'number' },
          on: { type: 'boolean' },
          list: { type: 'array' },
          maybe: { type: ['string', 'null'] },
          either: { anyOf: [{ type: 'integer' }, { type: 'null' }] },
          any: {},
        },
      },
    },
  },
]

type Pairs = [name: string, text: string][]

const coder = (pairs: Pairs) =>
  `<tool_call>\n<function=f>\n${pairs.map(([name, text]) => `<parameter=${name}>\n${text}\n</parameter>\n`).join('')}</function>\n</tool_call>`
const glm45 = (pairs: Pairs) =>
  `<tool_call>f\n${pairs.map(([name, text]) => `<arg_key>${name}</arg_key>\n<arg_value>${text}</arg_value>\n`).join('')}</tool_call>`
const glm47 = (pairs: Pairs) => glm45(pairs).replaceAll('\n', '')

for (const { name, family, write } of [
  { name: 'qwen3_coder', family: qwen3Coder, write: coder },
  { name: 'glm45', family: glm, write: glm45 },
]) {
  const parse = (pairs: Pairs) => parseBriefly(family, write(pairs), { tools })

  t.test(`${name}: the tool's schema determines the type of a text`, async (t) => {
    t.same(
      parse([
        ['text', '5'],
        ['count', '5'],
        ['ratio', '1.0'],
        ['on', 'true'],
        ['list', '[1,  "a"]'],
      ]),
      {
        calls: ['f({"text": "5", "count": 5, "ratio": 1.0, "on": true, "list": [1,  "a"]})'],
      },
    )
    t.same(
      parse([
        ['on', 'False'],
        ['either', 'None'],
        ['maybe', 'null'],
        ['text', 'null'],
      ]),
      {
        calls: ['f({"on": false, "either": null, "maybe": null, "text": "null"})'],
      },
    )
  })

  t.test(`${name}: a text that does not match its type, or has an unknown one, stays text`, async (t) => {
    t.same(
      parse([
        ['count', 'many'],
        ['any', '5'],
        ['unknown', '[1]'],
      ]),
      {
        calls: ['f({"count": "many", "any": "5", "unknown": "[1]"})'],
      },
    )
  })

  t.test(`${name}: a text keeps its lines, quotes, indentation and closing tags`, async (t) => {
    const code = '  def f():\n\treturn "x"\n\n</tool_call> </function>\n'
    t.same(parse([['text', code]]), { calls: [`f(${JSON.stringify({ text: code }).replace(':', ': ')})`] })
  })

  t.test(
    `${name}: tool calls without arguments, several tool calls, reasoning and content before them`,
    async (t) => {
      const text = `<think>\nhm\n</think>\n\nI look.\n${write([])}\n${write([['count', '2']])}\n`
      t.same(parseBriefly(family, text, { tools }), {
        reasoning: '\nhm\n',
        content: '\n\nI look.',
        calls: ['f({})', 'f({"count": 2})'],
      })
    },
  )

  t.test(
    `${name}: text that is not a tool call stays visible, and a valid one after it is still found`,
    async (t) => {
      const bad = write([]).replace(/f\b(>?)/, (_, end) => `f${end} nonsense <`)
      t.same(parseBriefly(family, `${bad}${write([])}`, { tools }).content, bad)
      const cutOff = write([['text', 'abc']]).split('abc')[0]!
      t.same(parseBriefly(family, cutOff, { tools }), { content: cutOff })
      t.same(parseBriefly(family, write([]), { tools: [] }), { content: write([]) })
    },
  )

  t.test(`${name}: for any chunks of the text, the result is the same`, async () => {
    assertSameForAnyChunks(family, [
      ...family.keepTokens,
      '\n',
      ' ',
      'f',
      '>',
      '<parameter=a>',
      '</parameter>',
      'text',
      write([]),
      write([['a', '1']]),
    ])
  })
}

t.test('a text has the first matching type that a schema allows, null first, string last', async (t) => {
  const numberOrText = { anyOf: [{ type: 'integer' }, { type: 'string' }] }
  const nullable = { type: ['string', 'null'] }
  const CASES: [schema: object, text: string, json: string][] = [
    [numberOrText, '5', '5'],
    [numberOrText, '5 a', '"5 a"'],
    [numberOrText, '-007', '-7'],
    [numberOrText, '5.0', '"5.0"'],
    [{ type: 'integer' }, '+5', '5'],
    [{ type: 'integer' }, '5.0', '5.0'],
    [{ type: 'number' }, '.5', '0.5'],
    [{ type: 'number' }, '1e999x', '"1e999x"'],
    [{ type: ['boolean', 'string'] }, 'TRUE', 'true'],
    [{ type: 'boolean' }, '0', 'false'],
    [{ type: ['object', 'string'] }, '{"a":  1}', '{"a":  1}'],
    [{ type: ['array', 'string'] }, "['a']", '"[\'a\']"'],
    [nullable, 'NULL', 'null'],
    [nullable, ' null', '" null"'],
    [{ enum: [1, 2, null] }, '2', '2'],
    [{ enum: [1, 2, null] }, 'null', 'null'],
    [{ enum: ['1', '2'] }, '2', '"2"'],
    [{ allOf: [{ type: 'integer' }] }, '2', '2'],
    [{ type: 'str' }, '2', '"2"'],
  ]
  for (const [schema, text, json] of CASES)
    t.equal(toJsonValue(text, getTypes(schema)), json, `${text} of ${JSON.stringify(schema)}`)
})

t.test('white space belongs to the value where the template writes none around it', async (t) => {
  const value = '\n a \n'
  const calls = [`f({"text": ${JSON.stringify(value)}})`]
  const WRITTEN = [
    [mimo, `<tool_call>\n<function=f>\n<parameter=text>${value}</parameter>\n</function>\n</tool_call>`],
    [
      minimaxM2,
      `<minimax:tool_call>\n<invoke name="f">\n<parameter name="text">${value}</parameter>\n</invoke>`,
    ],
    [miniCpm5, `<function name="f"><param name="text">${value}</param></function>`],
    [miniCpm5, `<function name="f"><param name="text"> <![CDATA[${value}]]> </param></function>`],
  ] as const
  for (const [family, text] of WRITTEN) t.same(parseBriefly(family, text, { tools }), { calls }, text)
})

t.test('an invalid schema is ignored', async (t) => {
  const schemas = [null, 5, { anyOf: {} }, { anyOf: [null, 'x'] }, { type: 5 }, { enum: 'x' }]
  for (const a of schemas) {
    const odd = [
      { type: 'function', function: { name: 'f', parameters: { properties: { a } } } },
    ] as unknown as Tool[]
    t.same(parseBriefly(glm, glm47([['a', 'x']]), { tools: odd }), { calls: ['f({"a": "x"})'] })
  }
  const call = glm47([
    ['constructor', 'x'],
    ['__proto__', 'y'],
  ])
  t.same(parseBriefly(glm, call, { tools }), { calls: ['f({"constructor": "x", "__proto__": "y"})'] })
})

t.test('qwen3_coder: a tool call without <tool_call> is accepted', async (t) => {
  const text = coder([['count', '2']])
  t.same(parseBriefly(qwen3Coder, text.replace('<tool_call>\n', ''), { tools }), {
    calls: ['f({"count": 2})'],
  })
  t.same(parseBriefly(qwen3Coder, 'a <tool_call> b', { tools }), { content: 'a <tool_call> b' })
})

t.test('qwen3_coder: the next parameter ends one without a closing tag', async (t) => {
  const text = '<function=f>\n<parameter=text>\na\n<parameter=count>\n2\n</parameter>\n</function>'
  t.same(parseBriefly(qwen3Coder, text, { tools }), { calls: ['f({"text": "a", "count": 2})'] })
})

t.test('glm45: version 4.7 writes no newlines', async (t) => {
  t.same(
    parseBriefly(
      glm,
      glm47([
        ['text', 'a b'],
        ['count', '2'],
      ]),
      { tools },
    ),
    { calls: ['f({"text": "a b", "count": 2})'] },
  )
  t.same(parseBriefly(glm, glm47([]), { tools }), { calls: ['f({})'] })
})
