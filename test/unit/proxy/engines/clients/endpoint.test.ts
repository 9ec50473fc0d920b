import t from 'tap'
import { parseEndpoint } from '../../../../../src/proxy/engines/clients/endpoint.ts'

t.test('an engine URL is accepted with or without /v1, and both name the same engine', (t) => {
  for (const url of [
    'http://gpu-1:8000',
    'http://gpu-1:8000/',
    'http://gpu-1:8000/v1',
    'http://gpu-1:8000/v1/',
  ]) {
    const { name, origin, basePath } = parseEndpoint(url)
    t.same(
      { name, origin, basePath },
      { name: 'http://gpu-1:8000', origin: 'http://gpu-1:8000', basePath: '' },
    )
  }
  t.equal(parseEndpoint('https://gateway/team/a/v1').basePath, '/team/a')
  t.end()
})

t.test('credentials become a header and appear nowhere else', (t) => {
  const basic = parseEndpoint('http://me:p%40ss@gpu-1:8000/v1')
  t.equal(basic.authorization, `Basic ${Buffer.from('me:p@ss').toString('base64')}`)
  t.equal(basic.name, 'http://gpu-1:8000')
  t.equal(basic.redact(`p@ss p%40ss ${basic.authorization}`), '*** *** Basic ***')
  const key = parseEndpoint('http://me:pass@gpu-1:8000', 'sk-1')
  t.equal(key.authorization, 'Bearer sk-1', 'the key has precedence')
  t.equal(key.redact('bad key sk-1'), 'bad key ***')
  t.equal(parseEndpoint('http://gpu-1').authorization, undefined)
  const odd = parseEndpoint('http://me:100%@gpu-1')
  t.equal(
    odd.authorization,
    `Basic ${Buffer.from('me:100%').toString('base64')}`,
    'a stray percent sign is kept',
  )
  t.end()
})

t.test('a URL other than HTTP is rejected without printing it', (t) => {
  for (const url of ['gpu-1:8000', 'ftp://me:secret@gpu-1', 'http://', 'me:secret@gpu-1']) {
    t.throws(() => parseEndpoint(url), { code: 'config_invalid', message: /^(?!.*secret)/ })
  }
  t.end()
})
