import { hash } from 'node:crypto'
import t, { type Test } from 'tap'
import { type ModelCodeOptions, readModelCode } from '../../../../../src/proxy/tokens/model/model-code.ts'

const CODE = 'def encode_messages(messages, thinking_mode): return ""\n'
const SHA256 = hash('sha256', CODE)

function setUp(t: Test, files: Parameters<Test['testdir']>[0]) {
  const directory = t.testdir(files)
  const read = (options: ModelCodeOptions & { hasTemplate?: boolean } = {}) =>
    readModelCode(directory, 'org/model', { hasTemplate: false, ...options })
  return { directory, read }
}

t.test('code of a model is rejected until its digest is given, which the error names', async (t) => {
  const { directory, read } = setUp(t, { encoding: { 'encoding_x.py': CODE, 'test_encoding_x.py': '' } })
  t.throws(() => read(), {
    code: 'config_invalid',
    message: `org/model needs code of its authors to render prompts, encoding/encoding_x.py, which runs only if you trust it: read it, then add --trust-model-code ${SHA256}`,
  })
  const expected = { file: 'encoding/encoding_x.py', source: CODE, sha256: SHA256 }
  t.same(read({ trustModelCode: SHA256 }), expected)
  t.same(read({ trustModelCode: SHA256.toUpperCase() }), expected)
  t.same(read({ trustModelCode: `${directory}/encoding/encoding_x.py` }), expected, 'or a file with the code')
})

t.test('other code than the trusted one is rejected', async (t) => {
  const { read } = setUp(t, { 'encoding_x.py': `${CODE}# changed` })
  t.throws(() => read({ trustModelCode: SHA256 }), {
    code: 'config_invalid',
    message: new RegExp(`encoding_x.py, whose SHA-256 differs from the trusted one \\(${SHA256}\\)`),
  })
  t.throws(() => read({ trustModelCode: 'abc' }), { message: /abc is neither/ })
})

t.test('a chat template precedes an encoder, unless the encoder is named', async (t) => {
  const { read } = setUp(t, { 'encoding_x.py': CODE })
  t.equal(read({ hasTemplate: true }), undefined)
  const named = { hasTemplate: true, promptEncoder: 'encoding_x.py', trustModelCode: SHA256 }
  t.match(read(named), { file: 'encoding_x.py' })
  t.throws(() => read({ promptEncoder: '../encoding_x.py' }), {
    message: 'org/model has no prompt encoder ../encoding_x.py; it has encoding_x.py',
  })
})

t.test('one of several encoders must be named', async (t) => {
  const { read } = setUp(t, { encoding: { 'encoding_x.py': CODE, 'encoding_y.py': 'other' } })
  t.throws(() => read({ trustModelCode: SHA256 }), {
    message: /name one of encoding\/encoding_x.py, encoding\/encoding_y.py with --prompt-encoder/,
  })
  t.match(read({ promptEncoder: 'encoding/encoding_x.py', trustModelCode: SHA256 }), { sha256: SHA256 })
})

t.test('trust without code that would run is rejected', async (t) => {
  const { read } = setUp(t, {})
  t.equal(read(), undefined)
  t.throws(() => read({ trustModelCode: SHA256 }), { code: 'config_invalid', message: /omit/ })
})
