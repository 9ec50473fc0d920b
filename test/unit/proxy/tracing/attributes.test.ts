import t from 'tap'
import { parseRequest } from '../../../../src/protocol/canonical/number-texts.ts'
import type { EngineRequestStart } from '../../../../src/protocol/canonical/spans.ts'
import { getEngineAttributes, getSpanName } from '../../../../src/proxy/tracing/attributes.ts'

const createStart = (body: object) =>
  ({ kind: 'chat', member: 'w1', memberKind: 'worker', body }) as unknown as EngineRequestStart

t.test('names of models and efforts are on the span', async (t) => {
  const start = createStart({ model: 'org/qwen3-8b:v1.2', reasoning_effort: 'high' })
  t.equal(getSpanName(start), 'chat org/qwen3-8b:v1.2')
  t.match(getEngineAttributes('s', start), {
    'gen_ai.request.model': 'org/qwen3-8b:v1.2',
    'gen_ai.request.reasoning.level': 'high',
  })
})

t.test('a text of the agent in place of a name is not on the span', async (t) => {
  for (const text of ['the launch code is 7421', 'x'.repeat(129), '']) {
    const start = createStart({ model: text, reasoning_effort: text })
    t.equal(getSpanName(start), 'chat')
    const attributes = getEngineAttributes('s', start)
    t.notOk('gen_ai.request.model' in attributes || 'gen_ai.request.reasoning.level' in attributes)
  }
})

t.test('a seed above 2^53 has all of its digits on the span', async (t) => {
  const getSeedAttributes = (json: string) =>
    getEngineAttributes('s', createStart(parseRequest(json) as object))
  t.match(getSeedAttributes('{"seed":9007199254740993}'), { 'gen_ai.request.seed': '9007199254740993' })
  t.match(getSeedAttributes('{"seed":7}'), { 'gen_ai.request.seed': 7 })
})
