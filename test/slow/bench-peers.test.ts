import t from 'tap'
import { Children } from '../bench/parts/children.ts'
import { LoadGenerator } from '../bench/parts/load-generator.ts'
import { startReplayer } from '../bench/parts/replay-targets.ts'
import { startEngine } from '../bench/parts/start-engine.ts'
import { LLM_PROXY, PEERS, type Peer } from '../bench/peers/catalog.ts'
import { measureEcho } from '../bench/peers/echo.ts'
import { measureKill } from '../bench/peers/kill.ts'
import { measure } from '../bench/peers/loads.ts'
import { getTotals, mergeRequests } from '../bench/peers/sequences.ts'
import { ONLY_FULL } from '../helpers/tier.ts'

/** The only peer that needs no installation; it records nothing. */
const forgetful: Peer = {
  ...PEERS.find(({ name }) => name === 'pipe')!,
  record: { countRequests: async () => 0, readSequences: async () => [] },
}

t.test(
  'a kill reveals a peer that acknowledges requests without recording them',
  { skip: ONLY_FULL },
  async (t) => {
    await using children = new Children()
    const { url } = await startEngine(children)
    const plan = { stream: true, requests: 12, agents: 3 }
    t.same(await measureKill(LLM_PROXY, url, t.testdir(), plan), { acknowledged: 12, recorded: 12 })
    t.same(await measureKill(forgetful, url, t.testdir(), plan), { acknowledged: 12, recorded: 0 })
  },
)

t.test(
  'an agent that tidies its echo splits rows of chat mode, and all of its tokens are trained once',
  { skip: ONLY_FULL },
  async (t) => {
    const figures = await measureEcho(LLM_PROXY, t.testdir(), true)
    const { sampled, trained, trainedAgain, sequences } = figures
    t.ok(sampled > 0)
    t.equal(trained, sampled)
    t.equal(trainedAgain, 0)
    t.ok(sequences > 1)
  },
)

t.test('a peer is measured under each load', { skip: ONLY_FULL }, async (t) => {
  await using children = new Children()
  const stage = {
    ...{ folder: t.testdir(), durationMs: 100, warmUpMs: 0, concurrency: 2 },
    engineUrl: (await startEngine(children)).url,
    load: await LoadGenerator.start(children),
    replayer: await startReplayer(children),
  }
  for (const load of ['small', 'large', 'replay'] as const) {
    const { requests, otherProcesses } = await measure(stage, forgetful, load, 0)
    t.ok(requests > 0, load)
    t.equal(otherProcesses, 0)
  }
})

t.test(
  'requests are merged where one continues another, and tokens in two sequences count once',
  async (t) => {
    const joined = mergeRequests([
      { prompt: [1, 2], completion: [3] },
      { prompt: [1, 2, 3, 4], completion: [5] },
      { prompt: [1, 9], completion: [5] },
    ])
    t.same(joined, [
      { ids: [1, 2, 3, 4, 5], mask: [0, 0, 1, 0, 1] },
      { ids: [1, 9, 5], mask: [0, 0, 1] },
    ])
    t.same(getTotals([...joined, joined[0]!]), { sequences: 3, trained: 3, trainedAgain: 2, tokens: 13 })
  },
)
