import type { ServerResponse } from 'node:http'
import t from 'tap'
import { createAutoClient } from '../../../../../src/proxy/engines/clients/auto-client.ts'
import { sendJson, startScriptedServer } from '../../../../helpers/scripted-server.ts'

for (const [title, fail, code] of [
  ['a lost connection', (response) => void response.destroy(), 'engine_unreachable'],
  ['HTTP 429', (response) => void sendJson(response, {}, 429), 'engine_failed'],
] as [string, (response: ServerResponse) => void, string][]) {
  t.test(`after ${title}, the kind of an engine is detected by the next health check`, async (t) => {
    let failures = 1
    const server = await startScriptedServer(({ path }, response) => {
      if (path === '/v1/models') return sendJson(response, { data: [{ id: 'm', owned_by: 'a-gateway' }] })
      if (path === '/model_info' && failures-- > 0) return fail(response)
      if (path === '/model_info') return sendJson(response, { is_generation: true })
      sendJson(response, {}, path === '/health' ? 200 : 404)
    })
    const client = createAutoClient({ url: server.url })
    t.teardown(async () => {
      await client.close()
      await server.close()
    })
    const check = () => client.checkHealth(new AbortController().signal)
    await t.rejects(check(), { code })
    await check()
    t.equal(client.kind, 'sglang')
  })
}
