import t from 'tap'
import { parseRequest } from '../../../../src/rollout/server/request.ts'
import { recordEnumeratedLengths } from '../../../helpers/enumerated-values.ts'

t.test('an invalid request names its field', async (t) => {
  t.strictSame(parseRequest({ sample: {}, record: ['a'] }), { sample: {}, record: ['a'] })
  t.throws(() => parseRequest({}), { code: 'invalid_request', message: /^the body: must have required/ })
  t.throws(() => parseRequest({ sample: {}, images: 1 }), { message: /^images: must be boolean/ })
})

t.test('the error of a long list is found without enumerating its elements', async (t) => {
  const lengths = recordEnumeratedLengths(t)
  const record = [...new Array<string>(100_000).fill('a'), 7]
  t.throws(() => parseRequest({ sample: {}, record }), { message: /^record\.100000: must be string/ })
  t.ok(lengths.length === 1 && lengths[0]! < 10_000, `${lengths}`)
})
