import t from 'tap'
import { gemma4 } from '../../../../../src/proxy/tokens/parsers/gemma4.ts'
import { harmony } from '../../../../../src/proxy/tokens/parsers/harmony.ts'
import { hermes } from '../../../../../src/proxy/tokens/parsers/json-families.ts'
import { findTruncationState } from '../../../../../src/proxy/tokens/parsers/unfinished.ts'

t.test('reasoning is open where the completion or the end of its prompt opened it last', (t) => {
  const getClose = (text: string, head = '<|im_start|>assistant\n') =>
    findTruncationState(hermes, text, head).reasoningClose
  t.equal(getClose('<think>\nhm'), '</think>')
  t.equal(getClose('hm', '<|im_start|>assistant\n<think>\n'), '</think>')
  t.equal(getClose('hm</think>', '<|im_start|>assistant\n<think>\n'), undefined)
  t.equal(getClose('<think>hm</think>\n\nYes'), undefined)
  t.equal(getClose('Yes'), undefined)
  t.match(findTruncationState(hermes, '<think>\nhm\n', ''), { header: '', endsLine: true })
  t.end()
})

t.test('a truncated header of harmony is completed', (t) => {
  const getRest = (text: string) => findTruncationState(harmony, text, '<|start|>assistant').header
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
  const unfinished = (text: string) => findTruncationState(gemma4, text, '<|turn>model\n')
  t.match(unfinished('<|channel>'), { header: 'thought\n', reasoningClose: '<channel|>' })
  t.match(unfinished('<|channel>thou'), { header: 'ght\n', reasoningClose: '<channel|>' })
  t.match(unfinished('<|channel>thought\nhm'), { header: '', reasoningClose: '<channel|>' })
  t.match(unfinished('<|channel>thought\nhm<channel|>a'), { header: '', reasoningClose: undefined })
  t.end()
})
