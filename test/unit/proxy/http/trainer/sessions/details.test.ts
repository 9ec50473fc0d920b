/** The details of rows: the turns whose token data is read for each. */
import t from 'tap'
import type { TokenDataKind } from '../../../../../../src/protocol/token-data/kinds.ts'
import { packTokenData } from '../../../../../../src/protocol/token-data/token-data.ts'
import { readTrajectories } from '../../../../../../src/proxy/http/trainer/sessions/trajectory-query.ts'
import { recordTurn } from '../../../../../helpers/sessions-api.ts'
import { openMemoryStore } from '../../../../../helpers/store-in-process.ts'

const TURNS = 4
const QUERY = {
  select: 'all',
  side_calls: false,
  rejected: false,
  finished_only: false,
  per_turn: true,
} as const

t.test('the data of sampled tokens is read for the row that trains them, and no other', async (t) => {
  const store = await openMemoryStore()
  t.teardown(() => store.close())
  const policies = { ttlMs: null, metadata: {}, samplingParams: {}, trustAgent: false }
  await store.createSession({ sessionId: 's', createdAtMs: 1, ...policies })
  const prompt = [1]
  for (let index = 0; index < TURNS; index += 1) {
    await recordTurn(store, 's', index, {
      promptTokenIds: Int32Array.from(prompt),
      completionTokenIds: Int32Array.of(10 + index),
      completionLogprobs: Float64Array.of(-1),
      details: packTokenData({
        advantages: [index + 1],
        prompt_logprobs: {
          start: 0,
          counts: prompt.map(() => 1),
          ids: prompt,
          logprobs: prompt.map(() => -index),
        },
      }),
    })
    prompt.push(10 + index, 1)
  }
  const session = (await store.getSession('s'))!
  const readRows = async (details: string) => {
    const reads: [kinds: readonly TokenDataKind[], turns: number][] = []
    const reader = {
      getSession: (sessionId: string) => store.getSession(sessionId),
      readSteps: (sessionId: string) => store.readSteps(sessionId),
      readDetails: (sessionId: string, turnIds: readonly string[], kinds: readonly TokenDataKind[]) => {
        reads.push([kinds, turnIds.length])
        return store.readDetails(sessionId, turnIds, kinds)
      },
    }
    const query = { ...QUERY, mask_stale_tokens: false, images: false, details }
    const chunks = await Array.fromAsync((await readTrajectories(reader, session, query)).toWire())
    return { reads, rows: JSON.parse(chunks.join('')).trajectories }
  }

  const advantages = await readRows('advantages')
  t.same(
    advantages.reads.map(([, turns]) => turns),
    [1, 1, 1, 1],
  )
  t.same(
    advantages.rows.map((row: { advantages: unknown }) => row.advantages),
    [[1], [2], [3], [4]],
  )

  const both = await readRows('advantages,prompt_logprobs')
  t.same(
    both.reads.filter(([kinds]) => kinds.includes('prompt_logprobs')).map(([, turns]) => turns),
    [1, 2, 3, 4],
    'a later row has what earlier turns reported for its prompt',
  )
  t.same(
    both.rows.map((row: { advantages: unknown }) => row.advantages),
    [[1], [2], [3], [4]],
  )
  t.same(both.rows[1].prompt_logprobs, [[0], [-1], [-1], null])
})
