import t from 'tap'
import { startProxy } from '../helpers/proxy.ts'
import { openEventStream, sendJson, startScriptedServer } from '../helpers/scripted-server.ts'

/** Creates a chunk of a tool call. @param id only in its first chunk */
const createChunk = (index: number, written: string, id?: string) => ({
  tool_calls: [
    {
      index,
      ...(id && { id, type: 'function' }),
      function: { ...(id && { name: 'f' }), arguments: written },
    },
  ],
})

const BODIES = {
  'v1/messages': {
    max_tokens: 9,
    tools: [{ name: 'f', input_schema: { type: 'object' } }],
    messages: [{ role: 'user', content: 'x' }],
  },
  'v1/responses': { tools: [{ type: 'function', name: 'f', parameters: {} }], input: 'x' },
}

/** Joins the arguments of each run of chunks that have the same index. */
function joinArguments(events: Record<string, unknown>[]): string[] {
  const runs: { at: unknown; text: string }[] = []
  for (const { type, index, output_index, delta } of events) {
    const at = index ?? output_index
    const text = type === 'content_block_delta' ? (delta as { partial_json: string }).partial_json : delta
    if (type !== 'content_block_delta' && type !== 'response.function_call_arguments.delta') continue
    const last = runs.at(-1)
    if (last !== undefined && last.at === at) last.text += text
    else runs.push({ at, text: String(text) })
  }
  return runs.map((run) => run.text)
}

for (const [path, body] of Object.entries(BODIES)) {
  t.test(
    `interleaved chunks of two tool calls reach the agent of ${path} one tool call after the other`,
    async (t) => {
      const engine = await startScriptedServer(async (request, response) => {
        if (request.method === 'GET') return sendJson(response, { data: [{ id: 'm' }] })
        const send = openEventStream(response)
        const chunks = [
          createChunk(0, '{"a"', 'c0'),
          createChunk(1, '{"b"', 'c1'),
          createChunk(0, ':1}'),
          createChunk(1, ':2}'),
        ]
        for (const delta of chunks) send({ choices: [{ index: 0, delta }] })
        send({ choices: [{ index: 0, delta: {}, finish_reason: 'tool_calls' }] })
        response.end('data: [DONE]\n\n')
      })
      t.teardown(() => engine.close())
      const proxy = await startProxy(t, { engineUrls: [engine.url], engineKind: 'openai' })
      const reply = await fetch(`${proxy.url}/s/${path}`, {
        method: 'POST',
        body: JSON.stringify({ model: 'm', stream: true, ...body }),
      })
      const events = (await reply.text()).split('\n').filter((line) => line.startsWith('data: {'))
      t.same(joinArguments(events.map((line) => JSON.parse(line.slice('data: '.length)))), [
        '{"a":1}',
        '{"b":2}',
      ])
      const session = await (await fetch(`${proxy.url}/sessions/s`)).json()
      const calls = [{ function: { arguments: '{"a":1}' } }, { function: { arguments: '{"b":2}' } }]
      t.match(session, { turns: [{ status: 'completed', tool_calls: calls }] })
    },
  )
}
