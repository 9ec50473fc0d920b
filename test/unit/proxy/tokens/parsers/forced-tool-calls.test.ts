import t from 'tap'
import { findParser } from '../../../../../src/proxy/tokens/parsers/choose-parser.ts'
import { createForcedToolCallParser } from '../../../../../src/proxy/tokens/parsers/forced-tool-calls.ts'
import { mergeDeltas, parseComplete } from '../../../../helpers/parsed-output.ts'
import { TOOLS } from './parse.ts'

const CALLS = '[{"name": "f", "parameters": {"a":  1}}, {"name": "f", "parameters": {}}]'
const NATIVE = '<tool_call>{"name": "f", "arguments": {}}</tool_call>'

/** Parses a text, and asserts that the result is the same character by character. */
function read(text: string, startsInReasoning = false) {
  const create = () =>
    createForcedToolCallParser(findParser('hermes'), {
      tools: TOOLS,
      startsInReasoning,
      makeToolCallId: () => 'id',
    })
  const full = parseComplete(create(), text)
  const parser = create()
  t.same(mergeDeltas([...[...text].map((character) => parser.push(character)), parser.finish()]), full)
  const { content, reasoning, toolCalls } = full
  return { content, reasoning, calls: toolCalls.map((call) => call.function.arguments) }
}

const calls = ['{"a":  1}', '{}']

t.test('the complete response is an array of tool calls', async (t) => {
  t.same(read(CALLS), { content: '', reasoning: '', calls })
  t.same(read(` ${CALLS}\n`), { content: '', reasoning: '', calls })
})

t.test('after reasoning, opened by prompt or model, and where the engine omitted it', async (t) => {
  t.same(read(`<think>\nhm\n</think>\n\n${CALLS}`), { content: '', reasoning: '\nhm\n', calls })
  t.same(read(`[hm]\n</think>\n\n${CALLS}`, true), { content: '', reasoning: '[hm]\n', calls })
  t.same(read(CALLS, true), { content: '', reasoning: '', calls })
})

t.test('a completion that continues content does not open reasoning', async (t) => {
  for (const tools of [TOOLS, null]) {
    const options = { tools, startsInContent: true }
    for (const parser of [
      createForcedToolCallParser(findParser('hermes'), options),
      findParser('hermes').create(options),
    ])
      t.match(parseComplete(parser, '<think> tags</think>'), {
        content: '<think> tags</think>',
        reasoning: '',
      })
  }
})

t.test("any other text is parsed in the model's own format", async (t) => {
  t.same(read(NATIVE), { content: '', reasoning: '', calls: ['{}'] })
  t.same(read(`hm</think>${NATIVE}`, true), { content: '', reasoning: 'hm', calls: ['{}'] })
  for (const text of ['[{"name": "f", "par', `${CALLS} and more`, '[1]', '', ' ']) {
    t.same(read(text), { content: text, reasoning: '', calls: [] })
  }
  t.same(read('cut off', true), { content: '', reasoning: 'cut off', calls: [] })
})

t.test("a tool call in the model's own format ends the reasoning that it starts in", async (t) => {
  const expected = { content: '', reasoning: 'hm\n', calls: ['{}'] }
  t.same(read(`<think>hm\n${NATIVE}`), expected)
  t.same(read(`hm\n${NATIVE}</think>`, true), expected, 'and the reasoning may be closed after it')
})

t.test('a format that requires a header before every text accepts no bare JSON', async (t) => {
  t.equal(findParser('harmony').grammar, undefined)
})
