/**
 * Requests with random errors, with an engine and sockets behind the proxy: what the dialects accept must not break a
 * chat template, a tokenizer or an engine's own checks. A tenth of `FUZZ_RUNS`, because an engine is slow.
 */
import fc from 'fast-check'
import t from 'tap'
import { createMutations } from '../../helpers/mutations.ts'
import { startProxy } from '../../helpers/proxy.ts'
import { watchStalls } from '../../helpers/stall-watch.ts'
import { checkResponse, DIALECTS, type HttpResponse } from './dialects.ts'

const RUNS = Math.ceil(Number(process.env.FUZZ_RUNS ?? 300) / 10)

for (const [mode, config] of Object.entries({ chat: {}, token: { tokenizer: 'embedded' } })) {
  for (const [name, { path, bodies, checkRejection }] of Object.entries(DIALECTS)) {
    t.test(`${name} in ${mode} mode: ${RUNS} invalid bodies`, async (t) => {
      const proxy = await startProxy(t, { db: 'memory', ...config })
      // Bounds completions, whatever limit the body has.
      await proxy.post('/sessions/s', { sampling_params: { max_tokens: 4 } })
      const sendRequest = async (body: string) => {
        const response = await fetch(`${proxy.baseUrl('s')}/${path}`, { method: 'POST', body })
        const received: HttpResponse = {
          statusCode: response.status,
          headers: Object.fromEntries(response.headers),
          body: await response.text(),
        }
        checkResponse(received, checkRejection)
      }
      const { withoutStall } = await watchStalls(t)
      await fc.assert(
        fc.asyncProperty(createMutations(...bodies), (body) => withoutStall(() => sendRequest(body))),
        { numRuns: RUNS },
      )
      t.equal((await fetch(`${proxy.url}/sessions/s/trajectories`)).status, 200)
    })
  }
}
