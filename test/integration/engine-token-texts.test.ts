/** In chat mode the texts of tokens are the engine's, if it reports them. */
import t from 'tap'
import { getEmbeddedModelFolder, loadEmbeddedTokenizer } from '../../src/embedded/engine/embedded-model.ts'
import {
  computeTokenTexts,
  createTokenTextReader,
} from '../../src/proxy/engines/clients/token-text-reader.ts'
import { createVllmClient } from '../../src/proxy/engines/clients/vllm/client.ts'
import { loadTokenizer } from '../../src/proxy/tokens/tokenizer/tokenizer.ts'
import { startEngine } from '../helpers/engine.ts'
import { sendJson, startScriptedServer } from '../helpers/scripted-server.ts'

const TEXT = 'Größe: 12 px, naïve — ok?\n\n  日本語 and 🦊🦊 <tool_call>{"a": 1}</tool_call>'

const createServingEngine = (client: ReturnType<typeof createVllmClient>, healthy = true) => ({
  client,
  watch: { healthy, models: [{ id: 'm' }] },
})

t.test('an engine reports the text that each token adds, as a tokenizer does', async (t) => {
  const { url, engine } = await startEngine(t)
  const client = createVllmClient({ url })
  t.teardown(() => client.close())
  const ids = Int32Array.from(await engine.tokenizeText(TEXT))
  const texts = await client.getTokenTexts!('embedded', ids, AbortSignal.timeout(60_000))
  t.equal(texts?.join(''), TEXT)
  t.equal(texts?.length, ids.length)
  // The text of consecutive partial characters is at their last token; all other texts equal the tokenizer's.
  const expected = await computeTokenTexts(loadTokenizer(getEmbeddedModelFolder()), ids)
  const full = expected.map((text, index) => (text.length > 0 && texts?.[index] === text ? text : undefined))
  t.ok(full.filter((text) => text !== undefined).length > ids.length / 3)
  t.strictSame(await client.getTokenTexts!('embedded', new Int32Array(0), AbortSignal.timeout(60_000)), [])
})

t.test('the text of a token is requested once', async (t) => {
  let requestCount = 0
  const server = await startScriptedServer((request, response) => {
    requestCount += 1
    const { tokens = [] } = request.body as { tokens?: number[] }
    const text = tokens.map((id) => (id === 0 ? '\u241e\u241f\u241e' : ` t${id}`)).join('')
    sendJson(response, request.path === '/tokenize' ? { tokens: [0] } : { prompt: text })
  })
  const client = createVllmClient({ url: server.url })
  t.teardown(async () => {
    await client.close()
    await server.close()
  })
  const texts = createTokenTextReader(undefined, loadEmbeddedTokenizer, () => [createServingEngine(client)])
  t.match(await texts('m', Int32Array.of(5, 6, 5)), { source: client.name, texts: [' t5', ' t6', ' t5'] })
  t.equal(requestCount, 2)
  t.match(await texts('m', Int32Array.of(6, 5)), { texts: [' t6', ' t5'] })
  t.equal(requestCount, 2)
  t.match(await texts('m', Int32Array.of(6, 7)), { texts: [' t6', ' t7'] })
  t.equal(requestCount, 3)
  t.equal(await texts('another', Int32Array.of(6)), undefined, 'no engine serves the model')
  t.equal(
    await createTokenTextReader(undefined, loadEmbeddedTokenizer, () => [createServingEngine(client, false)])(
      'm',
      Int32Array.of(6),
    ),
    undefined,
  )
})

t.test('an engine without the route, or with an invalid response, reports nothing', async (t) => {
  for (const reply of [
    { status: 404, body: {} },
    { status: 200, body: { tokens: [0], prompt: 'x' } },
  ]) {
    const server = await startScriptedServer((_request, response) =>
      sendJson(response, reply.body, reply.status),
    )
    const client = createVllmClient({ url: server.url })
    t.teardown(async () => {
      await client.close()
      await server.close()
    })
    t.equal(
      await createTokenTextReader(undefined, loadEmbeddedTokenizer, () => [createServingEngine(client)])(
        'm',
        Int32Array.of(5),
      ),
      undefined,
    )
  }
})
