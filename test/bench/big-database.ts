/**
 * `node test/bench/big-database.ts FILE`: creates 10,000 sessions, including two long ones: of 500 turns and 100,000
 * tokens, and of 1,000 turns and 200,000 tokens.
 */
import { openSqliteStore } from '../../src/proxy/store/sqlite/open.ts'
import { recordTurn } from '../helpers/sessions-api.ts'

const SESSIONS = 10_000
/** New tokens of each turn of the long sessions. */
const NEW_PROMPT_TOKENS = 140
const SAMPLED_TOKENS = 60

const path = process.argv[2]
if (path === undefined) throw new Error('pass the name of a database file')
const store = await openSqliteStore({ path, durability: 'process' })
const startMs = Date.now() - SESSIONS * 1_000

for (let number = 0; number < SESSIONS; number += 1) {
  const sessionId = `run-${number}`
  const metadata = { instance_id: `task-${Math.floor(number / 8)}`, step: Math.floor(number / 512) }
  const createdAtMs = startMs + number * 1_000
  void store.createSession({
    sessionId,
    createdAtMs,
    ttlMs: null,
    metadata,
    samplingParams: {},
    trustAgent: false,
  })
  const reward = (number * 7_919) % 11 < 6 ? 0 : ((number * 104_729) % 20) / 20
  void store.setReward(sessionId, { reward, components: { tests: reward } }, createdAtMs + 900)
  if (number % 500 === 499) await store.getSession(sessionId)
}

await recordLongSession('half', 500)
await recordLongSession('long', 1_000)
await store.close()

async function recordLongSession(sessionId: string, turns: number): Promise<void> {
  await store.createSession({
    sessionId,
    createdAtMs: Date.now(),
    ttlMs: null,
    metadata: { instance_id: sessionId },
    samplingParams: {},
    trustAgent: false,
  })
  const requestMessages: string[] = []
  let prompt = Int32Array.from({ length: NEW_PROMPT_TOKENS }, (_, i) => i % 2_000)
  for (let index = 0; index < turns; index += 1) {
    requestMessages.push(
      JSON.stringify({ role: 'user', content: `Step ${index}: look at this. `.repeat(20) }),
    )
    const completionTokenIds = Int32Array.from(
      { length: SAMPLED_TOKENS },
      (_, i) => (index * 31 + i * 17) % 2_000,
    )
    const completionText = `Answer ${index}. `.repeat(15)
    await recordTurn(store, sessionId, index, {
      requestMessages: [...requestMessages],
      model: 'embedded',
      promptTokenIds: prompt,
      completionTokenIds,
      completionLogprobs: Float64Array.from(
        { length: SAMPLED_TOKENS },
        (_, i) => -((index * 13 + i * 7) % 60) / 10,
      ),
      completionText,
      startedAtMs: startMs + index * 1_000,
      endedAtMs: startMs + index * 1_000 + 700,
    })
    requestMessages.push(JSON.stringify({ role: 'assistant', content: completionText }))
    const added = Int32Array.from({ length: NEW_PROMPT_TOKENS }, (_, i) => (index + i) % 2_000)
    prompt = Int32Array.from([...prompt, ...completionTokenIds, ...added])
  }
}
