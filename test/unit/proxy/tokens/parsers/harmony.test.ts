import t from 'tap'
import { harmony } from '../../../../../src/proxy/tokens/parsers/harmony.ts'
import { assertSameForAnyChunks, parseBriefly, TOOLS } from './parse.ts'

const ANALYSIS = '<|channel|>analysis<|message|>I think.<|end|>'
const FINAL = '<|start|>assistant<|channel|>final<|message|>Hello.<|return|>'
const CALL = '<|channel|>commentary to=functions.f <|constrain|>json<|message|>{"a":  1}<|call|>'

t.test('the channel distinguishes reasoning from content', async (t) => {
  t.same(parseBriefly(harmony, ANALYSIS + FINAL), { reasoning: 'I think.', content: 'Hello.' })
  t.same(parseBriefly(harmony, '<|channel|>final<|message|>cut off'), { content: 'cut off' })
})

t.test('a recipient makes a message a tool call, at any position in the header', async (t) => {
  t.same(parseBriefly(harmony, `${ANALYSIS}<|start|>assistant${CALL}`), {
    reasoning: 'I think.',
    calls: ['f({"a":  1})'],
  })
  const inRole = '<|start|>assistant to=functions.f<|channel|>commentary json<|message|>{}<|call|>'
  t.same(parseBriefly(harmony, inRole), { calls: ['f({})'] })
  t.same(
    parseBriefly(harmony, CALL.replace('<|call|>', '')),
    { calls: ['f({"a":  1})'] },
    'its end may be missing',
  )
})

t.test('commentary without a recipient is content', async (t) => {
  const preamble = '<|channel|>commentary<|message|>I look.<|end|><|start|>assistant'
  t.same(parseBriefly(harmony, preamble + CALL), { content: 'I look.', calls: ['f({"a":  1})'] })
})

t.test('messages of one kind are separated by a newline', async (t) => {
  t.same(parseBriefly(harmony, `${ANALYSIS}<|start|>assistant${ANALYSIS}${FINAL}`), {
    reasoning: 'I think.\nI think.',
    content: 'Hello.',
  })
})

t.test('text that is not a tool call stays visible with its header', async (t) => {
  for (const body of ['print(1)', '{"a":', '']) {
    const text = `<|channel|>commentary to=python<|message|>${body}`
    t.same(parseBriefly(harmony, `${text}<|call|>`), { content: text })
  }
})

t.test('without tools a message to a tool is content', async (t) => {
  t.same(parseBriefly(harmony, CALL, { tools: null }), { content: '{"a":  1}' })
})

t.test('text without a header is content, and a truncated header is dropped', async (t) => {
  t.same(parseBriefly(harmony, 'Hello.'), { content: 'Hello.' })
  t.same(parseBriefly(harmony, `${ANALYSIS}<|start|>assistant<|channel|>fin`), { reasoning: 'I think.' })
})

t.test('bodies are sent on arrival, without partial markers', async (t) => {
  const parser = harmony.create({ tools: TOOLS })
  t.same(parser.push('<|channel|>analysis<|mess'), {})
  t.same(parser.push('age|>I th'), { reasoning: 'I th' })
  t.same(parser.push('ink <|e'), { reasoning: 'ink ' })
  t.same(parser.push('nd|>'), {})
})

t.test('for any chunks of the text, the result is the same', async () => {
  assertSameForAnyChunks(harmony, [
    ...harmony.keepTokens,
    ANALYSIS,
    FINAL,
    CALL,
    'assistant',
    'analysis',
    ' to=f',
    '{}',
    '<',
    '\n',
  ])
})
