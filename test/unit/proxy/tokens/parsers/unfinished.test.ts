import t from 'tap'
import { gemma4 } from '../../../../../src/proxy/tokens/parsers/gemma4.ts'
import { harmony } from '../../../../../src/proxy/tokens/parsers/harmony.ts'
import { hermes } from '../../../../../src/proxy/tokens/parsers/json-families.ts'
import { kimiK3, minimaxM2, qwen3Coder } from '../../../../../src/proxy/tokens/parsers/tagged-families.ts'
import { findTruncationState } from '../../../../../src/proxy/tokens/parsers/unfinished.ts'
import { TOOLS } from './parse.ts'

t.test('reasoning is open if the completion or the end of its prompt opened it, until it is closed', (t) => {
  const getClose = (text: string, head = '<|im_start|>assistant\n') =>
    findTruncationState(hermes, text, head, null).reasoningClose
  t.equal(getClose('<think>\nhm'), '</think>')
  t.equal(getClose('hm', '<|im_start|>assistant\n<think>\n'), '</think>')
  t.equal(getClose('hm</think>', '<|im_start|>assistant\n<think>\n'), undefined)
  t.equal(getClose('<think>hm</think>\n\nYes'), undefined)
  t.equal(getClose('Yes'), undefined)
  t.match(findTruncationState(hermes, '<think>\nhm\n', '', null), { header: '', endsLine: true })
  t.end()
})

t.test('an opening marker after the beginning, which is text, opens no reasoning', (t) => {
  const header = '<|im_start|>assistant\n'
  const closed = `${header}<think>\n\n</think>\n\n`
  const getClose = (text: string, head = header) =>
    findTruncationState(hermes, text, head, TOOLS).reasoningClose
  t.equal(getClose('<think>a</think>\n\nUse the <think> tag to'), undefined)
  t.equal(getClose('Use the <think> tag to', closed), undefined)
  t.equal(getClose('Use the <think'), undefined)
  t.equal(getClose('a </think> b <think> c', `${header}<think>\n`), undefined)
  t.equal(getClose('\n<think>Use the <think> tag to'), '</think>')
  t.equal(getClose('<think>Use the </thi'), '</think>')
  t.end()
})

t.test('a tool call ends reasoning if the parser of the completion looked for tool calls', (t) => {
  const calls = [
    [qwen3Coder, '<think>a\n<tool_call>\n<function=f>\n<parameter=a>x'],
    [minimaxM2, '<think>a\n<minimax:tool_call>\n<invoke name="f">'],
    [hermes, '<think>a\n<tool_call>'],
  ] as const
  for (const [family, text] of calls) {
    t.equal(findTruncationState(family, text, '', TOOLS).reasoningClose, undefined, family.name)
    t.equal(findTruncationState(family, text, '', null).reasoningClose, '</think>', family.name)
  }
  t.end()
})

t.test('a truncated header of harmony is completed', (t) => {
  const getRest = (text: string) => findTruncationState(harmony, text, '<|start|>assistant', TOOLS).header
  t.equal(getRest('<|channel|>'), 'final<|message|>')
  t.equal(getRest('<|channel|>analysis'), '<|message|>')
  t.equal(getRest('<|channel|>comment'), 'ary<|message|>')
  t.equal(getRest('<|channel|>commentary to=functions.f <|constrain|>json'), '<|message|>')
  t.equal(getRest('<|channel|>analysis<|message|>hm<|end|><|start|>'), 'assistant<|channel|>final<|message|>')
  t.equal(getRest('<|channel|>analysis<|message|>hm<|end|><|start|>assistant'), '<|channel|>final<|message|>')
  for (const text of [
    '<|channel|>analysis<|message|>',
    '<|channel|>final<|message|>a',
    'text',
    '<|channel|>x<|end|>',
  ])
    t.equal(getRest(text), '', text)
  t.end()
})

t.test('a truncated opener of Gemma is completed, and its reasoning closed', (t) => {
  const unfinished = (text: string) => findTruncationState(gemma4, text, '<|turn>model\n', TOOLS)
  t.match(unfinished('<|channel>'), { header: 'thought\n', reasoningClose: '<channel|>' })
  t.match(unfinished('<|channel>thou'), { header: 'ght\n', reasoningClose: '<channel|>' })
  t.match(unfinished('<|channel>thought\nhm'), { header: '', reasoningClose: '<channel|>' })
  t.match(unfinished('<|channel>thought\nhm<channel|>a'), { header: '', reasoningClose: undefined })
  const later = unfinished('<|channel>thought\nhm<channel|>a<|channel>')
  t.match(later, { header: '', reasoningClose: undefined }, 'only the first one opens reasoning')
  t.end()
})

t.test('a truncated opener of another element of Kimi K3 is not completed to that of reasoning', (t) => {
  const unfinished = (text: string) => findTruncationState(kimiK3, text, '', TOOLS)
  t.match(unfinished('<|open|>'), { header: 'think<|sep|>', reasoningClose: '<|close|>think<|sep|>' })
  const next = unfinished('<|open|>think<|sep|>hm<|close|>think<|sep|><|open|>')
  t.match(next, { header: '', reasoningClose: undefined })
  t.end()
})
