import fc from 'fast-check'
import t from 'tap'
import { PromptIds } from '../../../../../../src/protocol/token-ids/prompt-ids.ts'
import { parseResponse } from '../../../../../../src/proxy/engines/clients/wire/parse-response.ts'
import { limitRuns } from '../../../../../helpers/tier.ts'

/** Parses a response, with plain arrays as lists of ids. */
function parse(json: string): unknown {
  return plain(parseResponse(Buffer.from(json)))
}

function plain(value: unknown): unknown {
  if (value instanceof PromptIds) return [...value]
  if (Array.isArray(value)) return value.map(plain)
  if (typeof value !== 'object' || value === null) return value
  return Object.fromEntries(Object.entries(value).map(([name, member]) => [name, plain(member)]))
}

t.test("a prompt's ids are parsed from the bytes", (t) => {
  const ids = [0, 7, 10, 151_645, 999_999_999]
  const atRoot = parseResponse(Buffer.from(JSON.stringify({ choices: [], prompt_token_ids: ids })))
  t.same(atRoot, { choices: [], prompt_token_ids: PromptIds.from(ids) })
  const choice = { index: 0, text: 'é', prompt_token_ids: ids }
  const onChoice = parseResponse(Buffer.from(JSON.stringify({ choices: [choice], prompt_token_ids: null })))
  t.same(onChoice, {
    choices: [{ ...choice, prompt_token_ids: PromptIds.from(ids) }],
    prompt_token_ids: null,
  })
  const many = Array.from({ length: 300_000 }, (_, index) => (index * 7919) % 200_000)
  t.same(parseResponse(Buffer.from(JSON.stringify({ prompt_token_ids: many }))), {
    prompt_token_ids: PromptIds.from(many),
  })
  t.end()
})

t.test('other values in these fields are parsed as by JSON.parse', (t) => {
  const texts = [
    '{"prompt_token_ids":[]}',
    '{"prompt_token_ids":[1, 2]}',
    '{"prompt_token_ids":[ 1]}',
    '{"prompt_token_ids":[1.5]}',
    '{"prompt_token_ids":[-1]}',
    '{"prompt_token_ids":[1e3]}',
    '{"prompt_token_ids":[2147483648]}',
    '{"prompt_token_ids":[12345678901234567890]}',
    '{"prompt_token_ids":[null]}',
    '{"prompt_token_ids":["1"]}',
    '{"prompt_token_ids":[[1],[2]]}',
    '{"prompt_token_ids":[1],"prompt_token_ids":[2]}',
    '{"prompt_token_ids":[1],"prompt_token_ids":"x"}',
    '{"usage":{"prompt_token_ids":[1,2]},"prompt_token_ids":[3]}',
    '{"a\\"prompt_token_ids":[1,2],"prompt_token_ids":[3]}',
    '{"a\\\\":1,"prompt_token_ids":[3]}',
    '{"content":"\\"prompt_token_ids\\":[1,2]","prompt_token_ids":[3]}',
    '{"choices":[null,{"prompt_token_ids":[1]}]}',
    '{"choices":{"prompt_token_ids":[1]}}',
    '[{"prompt_token_ids":[1]}]',
    '["prompt_token_ids",[1]]',
    '[1]',
    'null',
  ]
  for (const text of texts) t.same(parse(text), JSON.parse(text), text)
  t.end()
})

t.test('invalid JSON is rejected', (t) => {
  const texts = [
    '',
    '"prompt_token_ids":[1]',
    '{"prompt_token_ids":[1]',
    '{"prompt_token_ids":[1,]}',
    '{"prompt_token_ids":[,1]}',
    '{"prompt_token_ids":[01]}',
    '{"prompt_token_ids":[1 2]}',
    '{"prompt_token_ids":[1',
    '{"a":"b"prompt_token_ids":[1]}',
    '{"a":b"prompt_token_ids":[1]}',
  ]
  for (const text of texts) t.throws(() => parseResponse(Buffer.from(text)), SyntaxError, text)
  t.end()
})

t.test('any JSON is parsed correctly', (t) => {
  const key = fc.oneof(
    { weight: 3, arbitrary: fc.constantFrom('prompt_token_ids', 'choices', '"prompt_token_ids', 'a\\') },
    fc.string({ unit: 'binary' }),
  )
  const ids = fc.array(
    fc.oneof(
      { weight: 20, arbitrary: fc.nat() },
      fc.constantFrom<unknown>(-1, 0.5, 1e21, null, '1', 2 ** 31, 2 ** 53),
    ),
  )
  const { value } = fc.letrec((tie) => ({
    value: fc.oneof(
      { maxDepth: 4 },
      ids,
      fc.constantFrom('"prompt_token_ids":[1,2]', 'prompt_token_ids', '":[1],"'),
      fc.string({ unit: 'binary' }),
      fc.dictionary(key, tie('value'), { noNullPrototype: true }),
      fc.array(tie('value'), { maxLength: 3 }),
    ),
  }))
  const space = fc.constantFrom<(string | number)[]>(0, 0, 1, '\t')
  fc.assert(
    fc.property(fc.dictionary(key, value, { noNullPrototype: true }), space, (response, indent) => {
      const text = JSON.stringify(response, undefined, indent as string | number)
      // Compared as text, which shows the order of keys, and distinguishes NaN from null.
      return JSON.stringify(parse(text)) === JSON.stringify(JSON.parse(text))
    }),
    { numRuns: limitRuns(2_000) },
  )
  t.end()
})

t.test('random sequences of JSON fragments are accepted or rejected as by JSON.parse', (t) => {
  const chunk = fc.constantFrom(
    '"prompt_token_ids":[1,2]',
    '"prompt_token_ids":[',
    '"prompt_token_ids"',
    '{',
    '}',
    '[',
    ']',
    ':',
    ',',
    '"',
    '\\',
    '1',
    ' ',
    '"choices":[{',
    '}]',
  )
  const outcome = (read: () => unknown): string => {
    try {
      return JSON.stringify(read())
    } catch {
      return 'no JSON'
    }
  }
  fc.assert(
    fc.property(fc.array(chunk, { maxLength: 12 }), (chunks) => {
      const text = `{${chunks.join('')}}`
      return outcome(() => parse(text)) === outcome(() => JSON.parse(text))
    }),
    { numRuns: limitRuns(20_000) },
  )
  t.end()
})
