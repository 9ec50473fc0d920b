/** `--verify-share`: turns are verified while they are recorded, and the results are in /health and metrics. */
import OpenAI from 'openai'
import t from 'tap'
import type { ServeConfig } from '../../src/proxy/config/options/serve.ts'
import { HalvedEngine, startEngine } from '../helpers/engine.ts'
import { startProxy, type TestProxy } from '../helpers/proxy.ts'
import { joinWorker } from '../helpers/relay-rig.ts'
import { startScoringEngine, TableModel } from '../helpers/scoring-engines.ts'
import { until } from '../helpers/until.ts'

async function sendRequests(proxy: TestProxy, count: number): Promise<void> {
  const openai = new OpenAI({ baseURL: proxy.baseUrl('s'), apiKey: 'none', maxRetries: 0 })
  for (let seed = 0; seed < count; seed += 1) {
    const messages = [{ role: 'user' as const, content: 'Tell me about otters.' }]
    await openai.chat.completions.create({ model: 'embedded', messages, seed, max_tokens: 8 })
  }
}

const getDrift = async (proxy: TestProxy) => (await proxy.get('/health')).drift

t.test('turns of the share are verified with the engine that sampled them', async (t) => {
  const engine = await startEngine(t)
  const proxy = await startProxy(t, { engineUrls: [engine.url], verifyShare: 1 })
  await sendRequests(proxy, 3)
  await until(async () => (await getDrift(proxy)).same === 3)
  const state = await until(async () => {
    const drift = await getDrift(proxy)
    return drift.control_caught !== null && drift.waiting === 0 && drift
  })
  t.match(state, {
    share: 1,
    same: 3,
    differs: 0,
    failed: 0,
    dropped: 0,
    mean_difference: 0,
    control_caught: true,
  })
  const metrics = await (await fetch(`${proxy.url}/metrics`)).text()
  t.match(metrics, /^llm_proxy_verified_turns_total\{verdict="same"\} 3$/m)
  t.match(metrics, /^llm_proxy_verified_mean_difference_bucket\{le="0.0001"\} 3$/m)
  t.match(metrics, /^llm_proxy_verify_controls_total\{caught="true"\} 1$/m)
  t.equal((await proxy.get('/sessions/s')).turns.length, 3, 'verification requests are not recorded')
})

for (const mode of ['local', 'relay'] as const) {
  t.test(`${mode}: a dedicated engine finds what another one reported wrongly`, async (t) => {
    const truth = await startEngine(t)
    const { url: wrong } = await startEngine(t, new HalvedEngine())
    const config: Partial<ServeConfig> = mode === 'local' ? { engineUrls: [wrong] } : { mode }
    const warnings: object[] = []
    const ignore = () => {}
    const warn = (fields: object) => warnings.push(fields)
    const logger = { debug: ignore, info: ignore, warn, error: ignore }
    const proxy = await startProxy(t, { ...config, verifyShare: 1, verifyEngineUrl: truth.url }, logger)
    if (mode === 'relay') joinWorker(t, { proxyUrls: [proxy.url], engineUrls: [wrong] })
    await sendRequests(proxy, 2)
    await until(async () => (await getDrift(proxy)).differs === 2)
    t.ok((await getDrift(proxy)).mean_difference > 0.05)
    const turnWarnings = warnings.filter((fields) => 'turn_id' in fields)
    t.equal(turnWarnings.length, 2, 'the log names the turns')
  })
}

t.test(
  'logprobs over a sampling mask are no drift if the mask is recorded, and are drift otherwise',
  async (t) => {
    const engine = await startScoringEngine(t, 'vllm', { policy: new TableModel(1) })
    const proxy = await startProxy(t, {
      engineUrls: [engine.url],
      engineKind: 'vllm',
      verifyShare: 1,
      record: ['sampling_mask'],
      logprobsMode: 'processed_logprobs',
    })
    const openai = new OpenAI({ baseURL: proxy.baseUrl('s'), apiKey: 'none', maxRetries: 0 })
    const sample = (seed: number) =>
      openai.chat.completions.create({
        model: 'policy',
        messages: [{ role: 'user', content: 'Tell me about otters.' }],
        ...{ seed, max_tokens: 60, temperature: 0.7, top_p: 0.6 },
      })
    await sample(1)
    await until(async () => (await getDrift(proxy)).same === 1)
    engine.state.reportsMasks = false
    await sample(2)
    await until(async () => (await getDrift(proxy)).differs === 1)
    t.match(await getDrift(proxy), { same: 1, skipped: 0, failed: 0 })
  },
)

t.test('without a share nothing is verified or reported', async (t) => {
  const proxy = await startProxy(t)
  await sendRequests(proxy, 1)
  t.equal(await getDrift(proxy), undefined)
})
