/**
 * Three nodes on one database, behind HAProxy and without, with rollouts that call in parallel: nodes are killed and come back,
 * one is stopped for longer than its lease, clocks differ by two hours, a worker leaves for good. No answer that an agent has read is lost, none trains
 * twice, and every agent comes to its end by its SDK's own retries. `npm run nodes` does more of it, and prints figures.
 */
import t from 'tap'
import { PACKAGES, programOf } from '../helpers/balancer.ts'
import { faketime, runNodesKilled } from '../helpers/nodes-killed.ts'
import { noPostgres, PostgresServer } from '../helpers/postgres.ts'

const RUNS = [
  { balancer: 'haproxy', sessions: 36, calls: 4, kills: 2, stops: false, skews: faketime !== undefined },
  { balancer: 'in turn', sessions: 36, calls: 4, kills: 1, stops: true, skews: false },
] as const

for (const { balancer, ...run } of RUNS) {
  const missing = balancer === 'haproxy' && programOf(balancer) === undefined
  const skip = noPostgres || (missing && `${balancer} is not here (${PACKAGES.haproxy})`)
  t.test(
    `${run.sessions} sessions, ${balancer}, nodes killed${run.stops ? ' and stopped' : ''}${run.skews ? ', clocks two hours apart' : ''}`,
    { skip },
    async (t) => {
      const server = await PostgresServer.start({ fsync: 'on' })
      t.teardown(() => server.end())
      const db = await server.newDatabase()
      const figures = await runNodesKilled(t, { ...run, balancer, db, folder: t.testdir({}) })
      t.comment(JSON.stringify(figures))
      t.equal(figures.finished, run.sessions, 'every rollout has come to its end')
      t.equal(figures.lost, 0, 'every answer that was read is on record')
      t.equal(figures.untrained, 0, 'every answer that was read trains')
      t.equal(figures.twice, 0, 'no turn trains twice')
      t.equal(figures.listed, run.sessions, 'each is listed once')
    },
  )
}
