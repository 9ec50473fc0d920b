import fc from 'fast-check'
import t from 'tap'
import { toOriginForm } from '../../../../../src/proxy/http/transport/origin-form.ts'

t.test('the host of a target in absolute form is ignored', async (t) => {
  const cases = [
    ['http://host:1/a/b?c=d', '/a/b?c=d'],
    ['HTTPS://user:pass@host/a', '/a'],
    ['http://host', '/'],
    ['http://host?a=b', '/?a=b'],
    ['http://host//a', '//a'],
    ['http://host/a#fragment', '/a'],
    ['http:///a', '/a'],
  ] as const
  for (const [target, path] of cases) t.equal(toOriginForm(target), path, target)
})

t.test('every other target is unchanged', async (t) => {
  for (const target of ['/a', '//host/a', '/\\host/a', '*', 'ftp://host/a', 'host:80', '/http://host/a', ''])
    t.equal(toOriginForm(target), target, target)
})

t.test('a target that starts with http:// or https:// becomes a path, for any remainder', async () => {
  fc.assert(
    fc.property(
      fc.constantFrom('http://', 'https://', 'HTTP://'),
      fc.string({ unit: 'binary' }),
      (scheme, rest) => {
        return toOriginForm(scheme + rest).startsWith('/')
      },
    ),
  )
})
