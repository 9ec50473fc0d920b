import t from 'tap'
import { getAgentFacingUrl, toProxyBaseUrl } from '../../../src/rollout/session-urls.ts'

t.test('the proxy is found by a URL of either kind, with or without a trailing slash', async (t) => {
  t.equal(toProxyBaseUrl('ws://proxy:8080/'), 'http://proxy:8080')
  t.equal(toProxyBaseUrl('wss://proxy/base'), 'https://proxy/base')
  t.equal(toProxyBaseUrl('http://proxy:8080'), 'http://proxy:8080')
})

t.test("agents use the given address, with the proxy's port and path", async (t) => {
  t.equal(getAgentFacingUrl('http://proxy:8080', '10.0.0.1'), 'http://10.0.0.1:8080')
  t.equal(getAgentFacingUrl('https://proxy/base/', 'llm.example.com'), 'https://llm.example.com/base')
  t.equal(getAgentFacingUrl('http://proxy:8080', 'fd00::1'), 'http://[fd00::1]:8080')
  t.equal(getAgentFacingUrl('http://proxy:8080'), 'http://proxy:8080')
})

t.test('a URL without a port has the default port of its scheme', async (t) => {
  for (const [url, port] of [
    ['http://proxy', '80'],
    ['https://proxy', '443'],
  ] as const) {
    const { protocol, port: urlPort } = new URL(getAgentFacingUrl(url, '10.0.0.1'))
    t.equal(urlPort || { 'http:': '80', 'https:': '443' }[protocol], port)
  }
})

t.test('the address may have its own port', async (t) => {
  t.equal(getAgentFacingUrl('http://proxy:8080', '10.0.0.1:9000'), 'http://10.0.0.1:9000')
  t.equal(getAgentFacingUrl('http://proxy:8080', '[fd00::1]:9000'), 'http://[fd00::1]:9000')
})

t.test("credentials of the trainer's URL are not passed to agents", async (t) => {
  t.equal(getAgentFacingUrl('http://user:secret@proxy:8080', '10.0.0.1'), 'http://10.0.0.1:8080')
  t.equal(getAgentFacingUrl('http://user:secret@proxy:8080'), 'http://proxy:8080')
})

t.test('an invalid address is rejected with the name of the variable', async (t) => {
  for (const host of ['http://10.0.0.1', '10.0.0.1/x', 'a b', 'user@host']) {
    t.throws(
      () => getAgentFacingUrl('http://proxy', host),
      { code: 'config_invalid', message: /^LLM_PROXY_IP: / },
      host,
    )
  }
})
