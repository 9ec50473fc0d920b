import fc from 'fast-check'
import t from 'tap'
import { renderChatMl } from '../../../src/embedded/engine/chat-ml.ts'
import { getEmbeddedModelFolder, loadEmbeddedModel } from '../../../src/embedded/engine/embedded-model.ts'
import { readPrompt } from '../../../src/embedded/engine/prompt-conversation.ts'
import type { ChatMessage, Tool, ToolCall } from '../../../src/protocol/canonical/messages.ts'
import { hermes } from '../../../src/proxy/tokens/parsers/json-families.ts'
import { parseComplete } from '../../helpers/parsed-output.ts'
import { loadTemplate } from '../../helpers/templates.ts'

const { tokenizer } = loadEmbeddedModel()
const { template } = loadTemplate(getEmbeddedModelFolder())
const TOOLS: Tool[] = ['calculator', 'bash'].map((name) => ({
  type: 'function',
  function: {
    name,
    description: 'Does "things" <safely> & well.',
    parameters: { type: 'object', properties: {} },
  },
}))

t.test('every text is restored from its ids', async () => {
  const text = fc.oneof(fc.string({ unit: 'grapheme' }), fc.string({ unit: 'binary' }))
  fc.assert(
    fc.property(text, (string) => tokenizer.decode(tokenizer.encode(string)) === string.toWellFormed()),
  )
})

t.test("markup is one token each, and the end of a turn is the tokenizer's eos", async (t) => {
  for (const markup of [
    '<|im_start|>',
    '<|im_end|>',
    '<|endoftext|>',
    '<tool_call>',
    '</tool_call>',
    '<think>',
  ]) {
    t.equal(tokenizer.encode(markup).length, 1, markup)
  }
  t.equal(tokenizer.eosTokenId, tokenizer.tokenToId('<|im_end|>'))
  t.ok(tokenizer.isSpecial(tokenizer.eosTokenId!))
  t.notOk(tokenizer.isSpecial(tokenizer.tokenToId('<tool_call>')!), 'parsers must see it')
})

t.test('a conversation with tools is rendered as by Qwen2.5', async (t) => {
  const messages: ChatMessage[] = [
    { role: 'system', content: 'Be brief.' },
    { role: 'user', content: 'Add 1 and 2, and list.' },
    {
      role: 'assistant',
      content: 'Sure.',
      tool_calls: [createToolCall('calculator', '{"a":1}'), createToolCall('bash', '{}')],
    },
    { role: 'tool', tool_call_id: '1', content: '3' },
    { role: 'tool', tool_call_id: '2', content: 'a.txt' },
  ]
  const rendered = template.render(messages, { tools: TOOLS.slice(0, 1) })
  t.equal(
    rendered,
    '<|im_start|>system\nBe brief.\n\n# Tools\n\nYou may call one or more functions to assist with the user query.' +
      '\n\nYou are provided with function signatures within <tools></tools> XML tags:\n<tools>\n' +
      '{"type": "function", "function": {"name": "calculator", "description": "Does \\"things\\" <safely> & well.", ' +
      '"parameters": {"type": "object", "properties": {}}}}\n</tools>\n\nFor each function call, return a json ' +
      'object with function name and arguments within <tool_call></tool_call> XML tags:\n<tool_call>\n' +
      '{"name": <function-name>, "arguments": <args-json-object>}\n</tool_call><|im_end|>\n' +
      '<|im_start|>user\nAdd 1 and 2, and list.<|im_end|>\n' +
      '<|im_start|>assistant\nSure.\n<tool_call>\n{"name": "calculator", "arguments": {"a": 1}}\n</tool_call>\n' +
      '<tool_call>\n{"name": "bash", "arguments": {}}\n</tool_call><|im_end|>\n' +
      '<|im_start|>user\n<tool_response>\n3\n</tool_response>\n<tool_response>\na.txt\n</tool_response><|im_end|>\n' +
      '<|im_start|>assistant\n',
  )
})

t.test('a conversation without a system message gets the default one', async (t) => {
  t.equal(
    template.render([{ role: 'user', content: 'hi' }], { addGenerationPrompt: false }),
    '<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n',
  )
})

function createToolCall(name: string, args: string): ToolCall {
  return { id: `call_${name}`, type: 'function', function: { name, arguments: args } }
}

/** Text without markup; a message that quotes `<|im_end|>` ends itself in every ChatML template. */
const plain = fc.string({ unit: fc.constantFrom('a', 'Z', '7', ' ', '\n', '.', '"', '{', 'é', '<', '🙂') })
const trimmed = plain.map((text) => text.trim())

/** A possible completion: content, then tool calls, with the whitespace of the template. */
const completion = fc
  .record({
    reasoning: trimmed,
    content: trimmed,
    calls: fc.array(fc.record({ name: fc.constantFrom('calculator', 'bash'), value: plain }), {
      maxLength: 2,
    }),
  })
  .map(({ reasoning, content, calls }) => {
    const blocks = calls.map(
      ({ name, value }) =>
        `<tool_call>\n{"name": "${name}", "arguments": {"value": ${JSON.stringify(value)}, "n": [1, 2]}}\n</tool_call>`,
    )
    const thoughts = reasoning === '' ? '' : `<think>\n${reasoning}\n</think>\n\n`
    return thoughts + [...(content === '' ? [] : [content]), ...blocks].join('\n')
  })

const turn = fc.record({ completion, reply: plain })

t.test('each prompt starts with the previous prompt and its completion', async () => {
  fc.assert(
    fc.property(
      fc.array(turn, { minLength: 1, maxLength: 4 }),
      plain,
      fc.boolean(),
      (turns, first, offersTools) => {
        const tools = offersTools ? TOOLS : null
        const messages: ChatMessage[] = [{ role: 'user', content: first }]
        return turns.every(({ completion, reply }) => {
          const before = template.render(messages, { tools })
          const parsed = parseComplete(hermes.create({ tools }), completion)
          messages.push({
            role: 'assistant',
            content: parsed.content,
            ...(parsed.reasoning ? { reasoning_content: parsed.reasoning } : {}),
            ...(parsed.toolCalls.length > 0 ? { tool_calls: parsed.toolCalls } : {}),
          })
          for (const { id } of parsed.toolCalls)
            messages.push({ role: 'tool', tool_call_id: id, content: reply })
          if (parsed.toolCalls.length === 0) messages.push({ role: 'user', content: reply })
          return template.render(messages, { tools }).startsWith(`${before}${completion}<|im_end|>`)
        })
      },
    ),
  )
})

t.test('a rendered prompt is parsed into its original conversation', async (t) => {
  const messages: ChatMessage[] = [
    { role: 'system', content: 'Be brief.' },
    { role: 'user', content: 'First\ntask' },
    { role: 'assistant', content: 'Done.' },
    { role: 'user', content: 'Second task' },
    {
      role: 'assistant',
      content: null,
      tool_calls: [createToolCall('bash', '{}'), createToolCall('bash', '{}')],
    },
    { role: 'tool', tool_call_id: '1', content: 'one\ntwo' },
    { role: 'tool', tool_call_id: '2', content: '' },
  ]
  const conversation = readPrompt(template.render(messages, { tools: TOOLS }))
  t.match(conversation, { task: 'Second task', step: 1 })
  t.same([...conversation!.tools], ['calculator', 'bash'])
  t.same(
    conversation!.messages.map(({ role }) => role),
    ['user', 'assistant', 'user', 'assistant', 'tool', 'tool'],
  )
  t.same(conversation!.messages.slice(-2), [
    { role: 'tool', text: 'one\ntwo' },
    { role: 'tool', text: '' },
  ])
})

t.test('a prompt that is not a chat with a generation prompt is not a conversation', async (t) => {
  t.equal(readPrompt('Once upon a time'), undefined)
  const full = template.render([{ role: 'user', content: 'hi' }], { addGenerationPrompt: false })
  t.equal(readPrompt(full), undefined)
})

t.test('the engine renders the template as Jinja2 does', async () => {
  const text = fc.oneof(
    fc.string({ unit: 'grapheme' }),
    fc.constantFrom('', '\n', '\n\na\n', 'é<&"', '\u2028'),
  )
  const optional = fc.option(text, { nil: null })
  const parts = fc.array(
    text.map((part) => ({ type: 'text' as const, text: part })),
    { maxLength: 3 },
  )
  const calls = fc.array(
    fc.tuple(fc.constantFrom('bash', 'f'), fc.constantFrom('{"a":1,"b":[true,null]}', '', '{"a', '5')),
    { maxLength: 2 },
  )
  const message = fc.oneof(
    fc.record({ role: fc.constantFrom('user', 'system', 'developer'), content: fc.oneof(text, parts) }),
    fc.record({ role: fc.constant('tool'), tool_call_id: fc.constant('1'), content: text }),
    fc.record({
      role: fc.constant('assistant'),
      content: optional,
      reasoning_content: optional,
      tool_calls: calls.map((list) => list.map(([name, args]) => createToolCall(name, args))),
    }),
  ) as fc.Arbitrary<ChatMessage>
  fc.assert(
    fc.property(
      fc.array(message, { maxLength: 8 }),
      fc.boolean(),
      fc.boolean(),
      (messages, withTools, opens) => {
        const tools = withTools ? TOOLS : null
        const expected = template.render(messages, { tools, addGenerationPrompt: opens })
        return renderChatMl(messages, tools, opens) === expected
      },
    ),
  )
})
