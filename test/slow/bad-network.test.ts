/**
 * Agents behind a bad network: of 100 attempts, five each are rejected, break before, during or after the response, or
 * hang. Every rollout completes, each request is sampled once, and each sampled token is trained once. `npm run
 * bad-network` does the same at length, and prints figures.
 */
import t from 'tap'
import { CLIENTS, onRecord, random, rollOut } from '../helpers/bad-network.ts'
import { startEngine } from '../helpers/engine.ts'
import { startProxy } from '../helpers/proxy.ts'

const ROLLOUTS = 5
const CALLS = 10

for (const client of Object.keys(CLIENTS)) {
  t.test(
    `${ROLLOUTS} rollouts of ${CALLS} requests over a bad network, with the client of ${client}`,
    async (t) => {
      const engine = await startEngine(t)
      const proxy = await startProxy(t, { engineUrls: [engine.url], tokenizer: 'embedded' })
      const rolledOut = await Promise.all(
        Array.from({ length: ROLLOUTS }, (_, seed) => {
          const sessionId = `${client}-${seed}`
          return rollOut(proxy, { sessionId, client, calls: CALLS, retries: 'answered', draw: random(seed) })
        }),
      )
      let responded = 0
      for (const { sessionId, error } of rolledOut) {
        t.equal(error, undefined, `${sessionId} completed`)
        const { turns, sampledTokens, trainedTokens, answeredRetries } = await onRecord(proxy, sessionId)
        t.equal(turns, CALLS, `${sessionId}: each request was sampled once`)
        t.ok(sampledTokens > 0)
        t.equal(trainedTokens, sampledTokens, `${sessionId}: each token is trained once`)
        responded += answeredRetries
      }
      const lost = rolledOut.reduce((sum, { lostTries }) => sum + lostTries, 0)
      t.comment(
        `${lost} attempts of ${ROLLOUTS * CALLS} requests were lost; ${responded} retries got a response without sampling`,
      )
      t.ok(responded > 0)
    },
  )
}
