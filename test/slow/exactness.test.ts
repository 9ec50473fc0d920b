/** Invalid token data from an engine: the request continues, and the turn is recorded as not exact, in both modes. */
import t, { type Test } from 'tap'
import { createVllmClient } from '../../src/proxy/engines/clients/vllm/client.ts'
import { createLocalBackend } from '../../src/proxy/engines/dispatch/local-backend.ts'
import { startProxy, type TestProxy } from '../helpers/proxy.ts'
import { startRelayProxy, startWorkerClient, untilWorkers } from '../helpers/relay-rig.ts'
import { sendJson, startScriptedServer } from '../helpers/scripted-server.ts'

/** Starts a vLLM that returns each completion with these ids and logprobs verbatim. */
async function startScriptedEngine(t: Test, ids: string, logprobs: string): Promise<string> {
  const { url, close } = await startScriptedServer(({ path }, response) => {
    if (path === '/v1/models') return sendJson(response, { data: [{ id: 'fake', owned_by: 'vllm' }] })
    if (path !== '/v1/completions') return sendJson(response, {})
    response.setHeader('content-type', 'application/json').end(`{"model": "fake", "choices": [{
      "index": 0, "text": "a b", "finish_reason": "stop", "prompt_token_ids": [1, 2, 3], "token_ids": [${ids}],
      "logprobs": {"tokens": ["a", "b"], "token_logprobs": [${logprobs}], "top_logprobs": null}
    }], "usage": {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}}`)
  })
  t.teardown(close)
  return url
}

async function startProxyInMode(t: Test, mode: string, engineUrl: string): Promise<TestProxy> {
  if (mode === 'local') return startProxy(t, { engineUrls: [engineUrl], engineKind: 'vllm' })
  const proxy = await startRelayProxy(t)
  const backend = createLocalBackend({ clients: [createVllmClient({ url: engineUrl })] })
  t.teardown(() => backend.close())
  startWorkerClient(t, proxy.url, 'w', backend)
  await untilWorkers(proxy, 'w')
  return proxy
}

const WRONG: [title: string, ids: string, logprobs: string, reason: RegExp][] = [
  ['an unknown logprob', '4, 5', '-0.1, null', /a logprob that is none/],
  ['a logprob beyond all doubles', '4, 5', '-0.1, -1e999', /a logprob that is none/],
  ['a logprob above 0', '4, 5', '-0.1, 0.5', /a logprob that is none/],
  ['the placeholder for minus infinity', '4, 5', '-0.1, -9999.0', /a logprob that is none/],
  ['an id of 2^32 and more', '4, 4294967301', '-0.1, -0.2', /a token id that is no id/],
  ['an id of 2^31', '4, 2147483648', '-0.1, -0.2', /a token id that is no id/],
  ['null for an id', '4, null', '-0.1, -0.2', /a token id that is no id/],
]

for (const mode of ['local', 'relay'])
  for (const [title, ids, logprobs, reason] of WRONG)
    t.test(
      `${mode} mode: a response of an engine that reports ${title} is delivered but not trained`,
      async (t) => {
        const proxy = await startProxyInMode(t, mode, await startScriptedEngine(t, ids, logprobs))
        const response = await proxy.post('/s/v1/completions', { model: 'fake', prompt: [1, 2, 3] })
        t.equal(response.choices?.[0].text, 'a b')
        const [row] = (await proxy.get('/sessions/s/trajectories')).trajectories
        t.match(row, { exact: false, inexact_reason: reason })
        const [turn] = (await proxy.get('/sessions/s')).turns
        t.notOk(turn.completion_token_ids.includes(5) && ids !== '4, 5', 'no id was changed into another one')
      },
    )

t.test('a prompt with an id that does not fit into 32 bits is rejected', async (t) => {
  const proxy = await startProxy(t)
  const response = await proxy.post('/s/v1/completions', { model: 'fake', prompt: [1, 4_294_967_301] })
  t.match(response.error, { type: 'invalid_request_error' })
})

t.test('in token mode an id beyond the vocabulary is not a sampled token', async (t) => {
  const engineUrls = [await startScriptedEngine(t, '4, 2000000', '-0.1, -0.2')]
  const proxy = await startProxy(t, { engineUrls, engineKind: 'vllm', tokenizer: 'embedded' })
  const messages = [{ role: 'user', content: 'Hello.' }]
  t.ok((await proxy.post('/s/v1/chat/completions', { model: 'fake', messages, max_tokens: 2 })).choices)
  const [turn] = (await proxy.get('/sessions/s')).turns
  t.match(turn, { exact: false, inexact_reason: /token id 2000000, but the vocabulary has \d+/ })
})
