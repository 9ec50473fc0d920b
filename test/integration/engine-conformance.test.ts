import t from 'tap'
import { createAutoClient } from '../../src/proxy/engines/clients/auto-client.ts'
import { createOpenaiClient } from '../../src/proxy/engines/clients/openai/client.ts'
import { createSglangClient } from '../../src/proxy/engines/clients/sglang/client.ts'
import { createVllmClient } from '../../src/proxy/engines/clients/vllm/client.ts'
import { type EngineUnderTest, engineClientSuite } from '../conformance/engine-client.ts'
import { STREAMS, startFakeSglang } from '../helpers/fake-sglang.ts'
import { startFakeVllm } from '../helpers/fake-vllm.ts'

type Engine = Pick<Awaited<ReturnType<typeof startFakeVllm>>, 'url' | 'running' | 'close'>

/** Starts an engine and creates a client for it. */
async function setUp(
  starting: Promise<Engine>,
  createClient: typeof createVllmClient,
): Promise<EngineUnderTest> {
  const engine = await starting
  const client = createClient({ url: engine.url })
  const close = async () => {
    await client.close()
    await engine.close()
  }
  return { client, model: 'fake', endless: { ignore_eos: true }, running: engine.running, close }
}

for (const [name, createClient] of Object.entries({ vllm: createVllmClient, openai: createOpenaiClient })) {
  t.test(`the ${name} client`, async (t) => engineClientSuite(t, () => setUp(startFakeVllm(), createClient)))
}

t.test('the vllm client in token mode', async (t) => {
  engineClientSuite(t, () => setUp(startFakeVllm(), createVllmClient), 'token')
})

for (const streams of STREAMS) {
  t.test(`the sglang client in token mode, with streams that are ${streams}`, async (t) => {
    engineClientSuite(t, () => setUp(startFakeSglang({ streams }), createSglangClient), 'token')
  })
}

t.test('the auto-detecting client, for SGLang in token mode', async (t) => {
  engineClientSuite(t, () => setUp(startFakeSglang(), createAutoClient), 'token')
})
