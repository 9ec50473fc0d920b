/**
 * Three nodes on one database, behind HAProxy (with FULL=1 also without), with rollouts that send parallel requests:
 * nodes are killed and restarted, one is stopped for longer than its lease, clocks differ by two hours, a worker leaves
 * permanently. No response that an agent has read is lost, none is trained twice, and every agent completes with its
 * SDK's own retries. `npm run nodes` repeats this at length, and prints figures.
 */
import t from 'tap'
import { findProgram, PACKAGES } from '../helpers/balancer.ts'
import { killInRotation, runNodesKilled, stopForThreeLeases } from '../helpers/nodes-killed.ts'
import { faketime, type Rig } from '../helpers/nodes-rig.ts'
import { noPostgres, PostgresServer } from '../helpers/postgres.ts'
import { IS_FULL } from '../helpers/tier.ts'

const SESSIONS = IS_FULL ? 36 : 18

const RUNS = [
  { balancer: 'haproxy', kills: 2, stops: false, skews: faketime !== undefined },
  { balancer: 'round robin', kills: 1, stops: true, skews: false },
] as const

for (const { balancer, kills, stops, skews } of IS_FULL ? RUNS : RUNS.slice(0, 1)) {
  const missing = balancer === 'haproxy' && findProgram(balancer) === undefined
  const skip = noPostgres || (missing && `${balancer} is not installed (${PACKAGES.haproxy})`)
  t.test(
    `${SESSIONS} sessions, ${balancer}, nodes killed${stops ? ' and stopped' : ''}${skews ? ', clocks two hours apart' : ''}`,
    { skip },
    async (t) => {
      const server = await PostgresServer.start({ fsync: 'on' })
      t.teardown(() => server.end())
      const db = await server.newDatabase()
      const figures = await runNodesKilled(t, {
        ...{ balancer, skews, db, sessions: SESSIONS, requests: 4, folder: t.testdir({}) },
        faults: async (rig, agents) => {
          const stopped = stops && agents.untilRead(1 / 8).then(() => stopForThreeLeases(rig))
          const killed: Rig = stops ? { ...rig, nodes: rig.nodes.slice(0, -1) } : rig
          await Promise.all([stopped, killInRotation(killed, agents, kills)])
        },
      })
      t.comment(JSON.stringify(figures))
      t.equal(figures.finished, SESSIONS, 'every rollout has completed')
      t.equal(figures.lost, 0, 'every delivered response is recorded')
      t.equal(figures.untrained, 0, 'every delivered response is trained')
      t.equal(figures.twice, 0, 'no turn is trained twice or undelivered')
      t.equal(figures.listed, SESSIONS, 'each is listed once')
    },
  )
}
