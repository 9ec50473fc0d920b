/**
 * Agents behind a bad network: of 100 attempts, five each are rejected, break before, during or after the response, or
 * hang. Every rollout completes, each request is sampled once, and each sampled token is trained once. `npm run
 * bad-network` does the same at length, and prints figures.
 */
import t from 'tap'
import { CLIENTS, createRandom, readRecordedTotals, rollOut } from '../helpers/bad-network.ts'
import { startEngine } from '../helpers/engine.ts'
import { startProxy } from '../helpers/proxy.ts'

const ROLLOUTS = 5
const REQUESTS = 10

for (const client of Object.keys(CLIENTS)) {
  t.test(
    `${ROLLOUTS} rollouts of ${REQUESTS} requests over a bad network, with the client of ${client}`,
    async (t) => {
      const engine = await startEngine(t)
      const proxy = await startProxy(t, { engineUrls: [engine.url], tokenizer: 'embedded' })
      const rolledOut = await Promise.all(
        Array.from({ length: ROLLOUTS }, (_, seed) => {
          const sessionId = `${client}-${seed}`
          return rollOut(proxy, {
            sessionId,
            client,
            requests: REQUESTS,
            retries: 'answered',
            draw: createRandom(seed),
          })
        }),
      )
      let redelivered = 0
      for (const { sessionId, error } of rolledOut) {
        t.equal(error, undefined, `${sessionId} completed`)
        const { turns, sampledTokens, trainedTokens, redeliveries } = await readRecordedTotals(
          proxy,
          sessionId,
        )
        t.equal(turns, REQUESTS, `${sessionId}: each request was sampled once`)
        t.ok(sampledTokens > 0)
        t.equal(trainedTokens, sampledTokens, `${sessionId}: each token is trained once`)
        redelivered += redeliveries
      }
      const lost = rolledOut.reduce((sum, { lostAttempts }) => sum + lostAttempts, 0)
      t.comment(
        `${lost} attempts of ${ROLLOUTS * REQUESTS} requests were lost; ${redelivered} retries got a response without sampling`,
      )
      t.ok(redelivered > 0)
    },
  )
}
