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

t.test('a repair has words of the sampled arguments, or parts of them', async (t) => {
  const sampled = readArguments('{"path": "srcmain", "Lines": [1, None]')
  for (const repaired of ['{}', '{"path":"main","lines":[1,null]}', '{"Path":"SRC/main"}'])
    t.ok(isArgumentsEcho(sampled, readArguments(repaired)), repaired)
  t.notOk(isArgumentsEcho(sampled, readArguments('{"path":"srcmain","lines":[2]}')))
})

t.test('long malformed arguments are compared in time linear in their length', async (t) => {
  // A search of the text for each word would take minutes.
  const words = Array.from({ length: 200_000 }, (_, index) => `word${index}`).join(' ')
  const sampled = readArguments(`{"content": "${words}`)
  t.ok(isArgumentsEcho(sampled, readArguments(JSON.stringify({ content: words }))))
  t.notOk(isArgumentsEcho(sampled, readArguments(JSON.stringify({ content: `${words} other` }))))
  const parts = words.replaceAll('word', 'wor d')
  t.notOk(
    isArgumentsEcho(sampled, readArguments(JSON.stringify({ content: parts }))),
    'more parts than are searched',
  )
  const [text, word] = ['a'.repeat(1_000_000), `${'a'.repeat(400_000)}b${'a'.repeat(400_000)}`]
  t.notOk(
    isArgumentsEcho(readArguments(`{"a": "${text}`), readArguments(JSON.stringify({ a: word }))),
    'a long word',
  )
})
