import t from 'tap'
import { isArgumentsEcho, readArguments } from '../../../../../src/proxy/session/matching/tool-arguments.ts'

t.test('arguments are compared as values, with any spacing and order', async (t) => {
  const [sampled, echoed] = [readArguments('{"a": 1, "b": [2]}'), readArguments('{"b":[2],"a":1}')]
  t.same(sampled, echoed)
  t.ok(isArgumentsEcho(sampled, echoed))
})

t.test(
  'arguments with excessively many values are compared as text, because sorting them would take seconds',
  async (t) => {
    const values = Array.from({ length: 21_000 }, (_, index) => index)
    const text = JSON.stringify({ values })
    t.same(readArguments(` ${text}`), { text, malformed: true })
    const long = JSON.stringify({ content: 'x,{}'.repeat(100_000) })
    t.equal(readArguments(long).malformed, false, 'a long text is one value')
  },
)
