import t from 'tap'
import { startProxy } from '../helpers/proxy.ts'
import { openEventStream, sendJson, startScriptedServer } from '../helpers/scripted-server.ts'

/** A piece of a tool call. @param id of its first one */
const piece = (index: number, written: string, id?: string) => ({
  tool_calls: [
    {
      index,
      ...(id && { id, type: 'function' }),
      function: { ...(id && { name: 'f' }), arguments: written },
    },
  ],
})

const ASKED = {
  'v1/messages': {
    max_tokens: 9,
    tools: [{ name: 'f', input_schema: { type: 'object' } }],
    messages: [{ role: 'user', content: 'x' }],
  },
  'v1/responses': { tools: [{ type: 'function', name: 'f', parameters: {} }], input: 'x' },
}

for (const [path, body] of Object.entries(ASKED)) {
  t.test(`a stream that ${path} has no words for is on record as the engine's failure`, async (t) => {
    const engine = await startScriptedServer(async (request, response) => {
      if (request.method === 'GET') return sendJson(response, { data: [{ id: 'm' }] })
      const send = openEventStream(response)
      const pieces = [piece(0, '{"a"', 'c0'), piece(1, '{"b"', 'c1'), piece(0, ':1}'), piece(1, ':2}')]
      for (const delta of pieces) send({ choices: [{ index: 0, delta }] })
      send({ choices: [{ index: 0, delta: {}, finish_reason: 'tool_calls' }] })
      response.end('data: [DONE]\n\n')
    })
    t.teardown(() => engine.close())
    const proxy = await startProxy(t, { engineUrls: [engine.url], engineKind: 'openai' })
    const answer = await fetch(`${proxy.url}/s/${path}`, {
      method: 'POST',
      body: JSON.stringify({ model: 'm', stream: true, ...body }),
    })
    t.match(await answer.text(), /The engine went (back to|on with)/)
    const session = await (await fetch(`${proxy.url}/sessions/s`)).json()
    t.match(session, { turns: [{ status: 'failed', error: { code: 'engine_failed' } }] })
  })
}
