/**
 * Four nodes behind a real load balancer, workers that dial all of them, a node that is killed and comes back, and a worker
 * that leaves for good: no answer that an agent has read is lost, no session is on a wrong node, and what a trainer reads
 * is complete. `npm run nodes` does the same with more sessions, and prints figures.
 */
import t from 'tap'
import { PACKAGES, programOf } from '../helpers/balancer.ts'
import { runNodesKilled } from '../helpers/nodes-killed.ts'

const SESSIONS = { haproxy: 100, envoy: 40 }
const CALLS = 4

for (const balancer of ['haproxy', 'envoy'] as const) {
  const sessions = SESSIONS[balancer]
  const skip = programOf(balancer) === undefined && `${balancer} is not here (${PACKAGES[balancer]})`
  t.test(`${sessions} sessions behind ${balancer}, a node killed and a worker gone`, { skip }, async (t) => {
    const figures = await runNodesKilled(t, { balancer, sessions, calls: CALLS, folder: t.testdir({}) })
    t.equal(figures.finished, sessions, 'every rollout has come to its end')
    t.equal(figures.lost, 0, 'every answer that was read is on record')
    t.equal(figures.untrained, 0, 'every answer that was read trains')
    t.ok(figures.trainedTokens <= figures.sampledTokens, 'no token trains twice')
    t.equal(figures.misplaced, 0, 'no session is on a wrong node')
    t.ok(
      figures.perNode.every((count) => count > 0),
      'each node has some',
    )
    t.equal(figures.listed, sessions, 'each is listed once')
    t.notOk(figures.listIsPartial)
  })
}
