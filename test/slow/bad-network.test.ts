/**
 * Agents behind a bad tunnel: of each five tries in a hundred are refused, break before, during or after the answer, or go
 * silent. Every rollout comes to its end, each call is sampled once, and each sampled token trains once.
 * `npm run bad-network` does the same at length, and prints figures.
 */
import t from 'tap'
import { CLIENTS, onRecord, random, rollOut } from '../helpers/bad-network.ts'
import { startEngine } from '../helpers/engine.ts'
import { startProxy } from '../helpers/proxy.ts'

const ROLLOUTS = 5
const CALLS = 10

for (const client of Object.keys(CLIENTS)) {
  t.test(
    `${ROLLOUTS} rollouts of ${CALLS} calls over a bad network, by the client of ${client}`,
    async (t) => {
      const engine = await startEngine(t)
      const proxy = await startProxy(t, { engineUrls: [engine.url], tokenizer: 'embedded' })
      const rolledOut = await Promise.all(
        Array.from({ length: ROLLOUTS }, (_, seed) => {
          const sessionId = `${client}-${seed}`
          return rollOut(proxy, { sessionId, client, calls: CALLS, retries: 'answered', draw: random(seed) })
        }),
      )
      let answered = 0
      for (const { sessionId, error } of rolledOut) {
        t.equal(error, undefined, `${sessionId} came to its end`)
        const { turns, sampledTokens, trainedTokens, answeredRetries } = await onRecord(proxy, sessionId)
        t.equal(turns, CALLS, `${sessionId}: each call was sampled once`)
        t.ok(sampledTokens > 0)
        t.equal(trainedTokens, sampledTokens, `${sessionId}: each token trains once`)
        answered += answeredRetries
      }
      const lost = rolledOut.reduce((sum, { lostTries }) => sum + lostTries, 0)
      t.comment(
        `${lost} tries of ${ROLLOUTS * CALLS} calls were lost; ${answered} retries were answered without sampling`,
      )
      t.ok(answered > 0)
    },
  )
}
