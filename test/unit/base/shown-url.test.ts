import t from 'tap'
import { hideCredentials, toShownUrl } from '../../../src/base/shown-url.ts'

t.test('a URL is shown without its credentials', async (t) => {
  for (const url of [
    'ws://user:hunter2@proxy:8080',
    'ws://user:hun@ter2@proxy:8080',
    'ws:user:hunter2@proxy:8080',
  ])
    t.equal(toShownUrl(url), 'ws://proxy:8080', url)
  t.equal(toShownUrl('dns+ws://user:hunter2@nodes:8080/llm'), 'dns+ws://nodes:8080/llm')
  t.equal(toShownUrl('http://user:hunter/2@proxy'), 'http://***@proxy', 'which is not a URL')
})

t.test('a URL without credentials is shown as it is', async (t) => {
  for (const url of ['http://proxy:8080', 'http://proxy/@scope/', 'dns+https://nodes'])
    t.equal(toShownUrl(url), url)
})

t.test('everything before the last @ is hidden, except the scheme', async (t) => {
  t.equal(hideCredentials('user:hun\nter2@host'), '***@host')
  t.equal(hideCredentials('http://host:8000'), 'http://host:8000')
})
