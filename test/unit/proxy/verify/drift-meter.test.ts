import t from 'tap'
import { ProxyError } from '../../../../src/base/errors.ts'
import { EmbeddedEngine } from '../../../../src/embedded/engine/embedded-engine.ts'
import type { TurnRecord } from '../../../../src/proxy/store/port/turn-store.ts'
import {
  DriftMeter,
  type DriftMeterOptions,
  type DriftVerdict,
} from '../../../../src/proxy/verify/drift-meter.ts'
import { addMessageTexts } from '../../../helpers/messages.ts'
import { DEFAULT_TURN } from '../../../helpers/sessions-api.ts'
import { silentLogger } from '../../../helpers/silent-logger.ts'
import { until } from '../../../helpers/until.ts'

const client = new EmbeddedEngine()
const engine = { client, health: { models: [{ id: 'embedded' }] } }

/** Creates a turn whose logprobs equal the engine's. */
async function createMatchingTurn(): Promise<TurnRecord> {
  const [promptTokenIds, completionTokenIds] = [Int32Array.of(1, 2, 3), Int32Array.of(4, 5, 6)]
  const { tokens } = await client.score({ promptTokenIds, completionTokenIds, alternatives: 0 })
  return {
    ...DEFAULT_TURN,
    lastMessage: undefined,
    sessionId: 's',
    turnId: 't',
    index: 0,
    model: 'embedded',
    promptTokenIds,
    completionTokenIds,
    completionLogprobs: Float64Array.from(tokens, ({ logprob }) => logprob),
  } as TurnRecord
}

async function createMeter(overrides: Partial<DriftMeterOptions> = {}) {
  const verdicts: DriftVerdict[] = []
  const turn = await createMatchingTurn()
  const meter = new DriftMeter({
    share: 1,
    store: { getTurn: async () => turn, readDetails: async () => new Map() },
    findEngine: async () => engine,
    onVerdict: (verdict) => verdicts.push(verdict),
    onControl: () => {},
    logger: silentLogger,
    retryDelayMs: 1,
    ...overrides,
  })
  return { meter, verdicts }
}

const TURN = { sessionId: 's', turnId: 't' }

t.test('a share of all turns is drawn', async (t) => {
  const numbers = [0.05, 0.5, 0.009, 0.01]
  const { meter, verdicts } = await createMeter({ share: 0.01, random: () => numbers.shift()! })
  for (let turn = 0; turn < 4; turn += 1) meter.offer(TURN)
  await until(() => verdicts.length === 1 && meter.getState().waiting === 0)
  t.match(meter.getState(), { same: 1, dropped: 0 })
  await meter.close()
})

t.test('while engines are busy turns wait, and those beyond a limit are dropped', async (t) => {
  let busy = true
  const { meter, verdicts } = await createMeter({ findEngine: async () => (busy ? 'busy' : engine) })
  for (let turn = 0; turn < 70; turn += 1) meter.offer(TURN)
  t.match(meter.getState(), { waiting: 64, dropped: 6, same: 0 })
  busy = false
  await until(() => verdicts.filter((verdict) => verdict === 'same').length === 64)
  await meter.close()
})

t.test('failures are counted and not rethrown', async (t) => {
  const responses = [
    async () => Promise.reject(new ProxyError('engine_lost', 'gone')),
    async () => undefined,
    async () => engine,
  ]
  const { meter, verdicts } = await createMeter({ findEngine: () => responses.shift()!() })
  for (let turn = 0; turn < 3; turn += 1) meter.offer(TURN)
  await until(() => verdicts.length === 3)
  t.same(verdicts, ['failed', 'skipped', 'same'])
  await meter.close()
})

t.test('a turn that was deleted meanwhile is skipped', async (t) => {
  const { meter, verdicts } = await createMeter({
    store: { getTurn: async () => undefined, readDetails: async () => new Map() },
  })
  meter.offer(TURN)
  await until(() => verdicts.length === 1)
  t.same(verdicts, ['skipped'])
  await meter.close()
})

t.test('a turn with an image is skipped', async (t) => {
  const part = { type: 'image_url', image_url: { url: 'data:image/png;base64,AA==' } }
  const messages = [
    { role: 'user', content: [part] },
    { role: 'user', content: 'What is it?' },
  ]
  const lastMessage = addMessageTexts(messages.map((message) => JSON.stringify(message)))
  const turn = { ...(await createMatchingTurn()), lastMessage }
  const store = { getTurn: async () => turn, readDetails: async () => new Map() }
  const reasons: unknown[] = []
  const { meter } = await createMeter({ store, onVerdict: (_, result) => reasons.push(result?.reason) })
  meter.offer(TURN)
  await until(() => reasons.length > 0)
  t.same(reasons, ['images'])
  await meter.close()
})

t.test('closing ends running checks and drops waiting ones', async (t) => {
  let isRequested = false
  const { meter, verdicts } = await createMeter({
    findEngine: (_turn, signal) =>
      new Promise((_resolve, reject) => {
        isRequested = true
        signal.addEventListener('abort', () => reject(signal.reason), { once: true })
      }),
  })
  meter.offer(TURN)
  meter.offer(TURN)
  await until(() => isRequested)
  await meter.close()
  meter.offer(TURN)
  t.same(verdicts, [])
})

t.test('an engine that does not react to a changed prompt is reported', async (t) => {
  const { completionLogprobs } = await createMatchingTurn()
  const tokens = Array.from(completionLogprobs!, (logprob) => ({
    logprob,
    alternatives: [],
    alternativeIds: [],
  }))
  const insensitive = Object.assign(new EmbeddedEngine(), { score: async () => ({ tokens }) })
  const controls: boolean[] = []
  const { meter } = await createMeter({
    findEngine: async () => ({ ...engine, client: insensitive }),
    onControl: (isCaught) => controls.push(isCaught),
  })
  meter.offer(TURN)
  await until(() => controls.length === 1)
  t.same(controls, [false])
  t.match(meter.getState(), { same: 1, control_caught: false })
  await meter.close()
})
