import t from 'tap'
import { type EnginesConfig, openEngines } from '../../src/open-engines.ts'

const getKinds = (engineKind: EnginesConfig['engineKind'], engineUrls: string[] = []) =>
  openEngines({ engineKind, engineUrls }).map(({ kind }) => kind)

t.test('without a URL the embedded engine serves, whether selected or not', async (t) => {
  t.strictSame(getKinds('auto'), ['embedded'])
  t.strictSame(getKinds('embedded'), ['embedded'])
})

t.test('an engine kind without a URL is rejected, without a fallback', async (t) => {
  for (const kind of ['vllm', 'sglang', 'openai'] as const) {
    t.throws(() => getKinds(kind), { code: 'config_invalid', message: /set --engine-url/ }, kind)
  }
})

t.test('each URL has its own client', async (t) => {
  t.strictSame(getKinds('vllm', ['http://127.0.0.1:1', 'http://127.0.0.1:2/v1']), ['vllm', 'vllm'])
})
