/**
 * Chat mode forwards the agent's messages byte for byte: the engine renders the agent's text instead of another
 * serializer's. This includes later requests, whose history the proxy knows.
 */
import t from 'tap'
import { startFakeVllm } from '../helpers/fake-vllm.ts'
import { startProxy } from '../helpers/proxy.ts'
import { joinWorker, startRelayProxy, untilWorkers } from '../helpers/relay-rig.ts'

/** Each is written differently from `JSON.stringify`. */
const MESSAGES = [
  String.raw`{"content":"Be \u0062rief.","role":"system"}`,
  String.raw`{ "role" : "system",  "content" : "And kind.\/" }`,
  String.raw`{"role":"user","content":"a  b\u00a0 \ud83d\ude00 \ud800 \t\u0009 é","n":[1.0,1e2,-0.0,12345678901234567890,1E400]}`,
  String.raw`{"role":"assistant","content":null,"tool_calls":[{"function":{"arguments":"{ \"n\" : 1.0 }","name":"f"},"type":"function","id":"call_1"}],"x":null}`,
  String.raw`{"tool_call_id":"call_1","role":"tool","content":[{"text":"  two  parts","type":"text"},{"type":"text","text":"<\u003e"}]}`,
  '{"role":"user","content":"","name":"z","__proto__":{"a":1},"2":"two","1":"one"}',
]

const sliceFromMessages = (body: string) => body.slice(body.indexOf('"messages":') + '"messages":'.length)

for (const mode of ['local', 'relay'] as const) {
  for (const stream of [false, true]) {
    await t.test(
      `${mode} mode, ${stream ? 'streamed' : 'complete'}: the engine gets the agent's bytes`,
      async (t) => {
        const engine = await startFakeVllm()
        t.teardown(() => engine.close())
        const engines = { engineUrls: [engine.url], engineKind: 'vllm' } as const
        const proxy = await (mode === 'local' ? startProxy(t, engines) : startRelayProxy(t))
        if (mode === 'relay') {
          joinWorker(t, { proxyUrls: [proxy.url], workerId: 'w', ...engines })
          await untilWorkers(proxy, 'w')
        }
        for (const count of [3, 5, 6]) {
          const list = `[ ${MESSAGES.slice(0, count).join(' ,\n')}]`
          const body = `{"stream":${stream}, "messages": ${list} ,"model":"fake","max_tokens":4}`
          const headers = { 'content-type': 'application/json' }
          const response = await fetch(`${proxy.baseUrl('s')}/chat/completions`, {
            method: 'POST',
            body,
            headers,
          })
          t.equal(response.status, 200)
          await response.text()
          const sent = engine.requests.findLast(({ path }) => path === '/v1/chat/completions')!
          const sentMessages = sliceFromMessages(sent.text)
          t.equal(sentMessages.slice(0, list.length), list)
          t.match(sent.body, { model: 'fake', max_tokens: 4, stream })
        }
        const { turns } = await proxy.get('/sessions/s')
        t.equal(turns.length, 3)
        t.same(
          turns[2].request_messages,
          JSON.parse(JSON.stringify(JSON.parse(`[${MESSAGES}]`))),
          'and the turn has the same bytes',
        )
      },
    )
  }
}
