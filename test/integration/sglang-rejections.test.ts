/** SGLang 0.5.23's rejections of streams, and the conclusions that the proxy may draw from them. */
import t from 'tap'
import { createSglangClient } from '../../src/proxy/engines/clients/sglang/client.ts'
import { chatRequest, collect, noAbort } from '../conformance/engine-client.ts'
import { pull } from '../helpers/event-stream.ts'
import { openEventStream, sendJson, startScriptedServer } from '../helpers/scripted-server.ts'

const REJECTED = { object: 'error', message: 'no ids in streams', type: 'BadRequestError', code: 400 }
const BAD_REGEX = { object: 'error', message: 'bad regex', type: 'BAD_REQUEST', param: null, code: 400 }

/**
 * Starts an engine whose chat route rejects ids in a stream, and an invalid regular expression: at once in a complete
 * response, and with the first event in a stream.
 */
async function start() {
  return await startScriptedServer(({ body }, response) => {
    if (body.stream && body.return_token_ids) return sendJson(response, REJECTED, 400)
    if (!body.stream && body.regex) return sendJson(response, BAD_REGEX, 400)
    const send = body.stream ? openEventStream(response) : undefined
    if (body.regex) send!({ error: BAD_REGEX })
    else {
      const choice = { index: 0, message: { content: 'a' }, finish_reason: 'stop', response_token_ids: [7] }
      const reply = { choices: [{ ...choice, ...(body.return_token_ids && { prompt_token_ids: [1] }) }] }
      if (send) send({ choices: [{ index: 0, delta: { content: 'a' }, finish_reason: 'stop' }] })
      else return sendJson(response, reply)
    }
    send!('[DONE]')
    response.end()
  })
}

t.test("an agent's invalid streamed requests do not disable token ids for others", async (t) => {
  const server = await start()
  const client = createSglangClient({ url: server.url })
  t.teardown(async () => {
    await client.close()
    await server.close()
  })
  for (let call = 0; call < 5; call += 1) {
    const bad = pull(client, chatRequest({ regex: '([' }, true), noAbort)
    await t.rejects(collect(bad), { code: 'engine_rejected', status: 400, message: 'bad regex' })
  }
  const events = await collect(pull(client, chatRequest({}, true), noAbort))
  t.match(events, [{ type: 'start' }, { type: 'delta', tokenIds: [7] }, { type: 'end' }])
  t.equal(client.warning, undefined)
})
