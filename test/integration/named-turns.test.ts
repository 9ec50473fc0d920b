/** Trainers identify turns by the ids in agents' responses, in every dialect. */
import t, { type Test } from 'tap'
import { startProxy, type TestProxy } from '../helpers/proxy.ts'

const CHAT = { model: 'm', messages: [{ role: 'user', content: 'Hello' }], max_tokens: 4 }

/** Path below the session, body, and the position of the id in the response. */
const DIALECTS: Record<string, [path: string, body: object, id: string]> = {
  chat: ['v1/chat/completions', CHAT, 'id'],
  completions: ['v1/completions', { model: 'm', prompt: 'Hello', max_tokens: 4 }, 'id'],
  responses: ['v1/responses', { model: 'm', input: 'Hello', max_output_tokens: 16 }, 'id'],
  messages: ['v1/messages', CHAT, 'id'],
  gemini: [
    'v1beta/models/m:generateContent',
    { contents: [{ role: 'user', parts: [{ text: 'Hello' }] }], generationConfig: { maxOutputTokens: 4 } },
    'responseId',
  ],
}

async function patch(proxy: TestProxy, path: string, body: object) {
  const headers = { 'content-type': 'application/json' }
  const response = await fetch(proxy.url + path, { method: 'PATCH', headers, body: JSON.stringify(body) })
  return response.json() as Promise<Record<string, unknown>>
}

async function recordTurns(t: Test, dialect: string) {
  const proxy = await startProxy(t)
  const [path, body, id] = DIALECTS[dialect]!
  await proxy.post(`/s/${path}`, body)
  const response = await proxy.post(`/s/${path}`, body)
  t.type(response[id], 'string')
  return { proxy, id: response[id] as string }
}

for (const dialect of Object.keys(DIALECTS)) {
  t.test(`${dialect}: rewards, details and labels identify a turn by the id of its response`, async (t) => {
    const { proxy, id } = await recordTurns(t, dialect)
    t.match(await proxy.post('/sessions/s/reward', { reward: 1, turns: { [id]: 0.5 } }), {
      reward_turns: { 1: 0.5 },
    })
    const turns = { [id]: { advantages: [0.25] } }
    t.match(await proxy.post('/sessions/s/details', { turns }), { turns: 1 })
    t.match(await patch(proxy, '/sessions/s', { turns: { [id]: { note: 'here' } } }), {
      marked_turns: { 1: { note: 'here' } },
    })
    const { turns: recorded } = await proxy.get('/sessions/s')
    const twice = { reward: 1, turns: { [id]: 1, [recorded[1].turn_id]: 1 } }
    // A dialect whose response id is the turn id has one form only.
    if (id !== recorded[1].turn_id) {
      t.match(await proxy.post('/sessions/s/reward', twice), { code: 'invalid_request' })
    }
  })
}

t.test('a response id of another session identifies no turn', async (t) => {
  const { proxy, id } = await recordTurns(t, 'chat')
  await proxy.post('/sessions/other')
  t.match(await proxy.post('/sessions/other/reward', { reward: 1, turns: { [id]: 1 } }), {
    code: 'turn_not_found',
    param: 'turns',
  })
})
