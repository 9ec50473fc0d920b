/**
 * Two releases on one database: nodes are drained one by one and restarted as the next release, whose schema has more,
 * and one of them as the old one again, while rollouts run. Sessions move between them; nothing is lost or duplicated.
 * nodes-earlier-release.test.ts has two releases side by side in every gate.
 */
import t from 'tap'
import { killInRotation, runNodesKilled } from '../helpers/nodes-killed.ts'
import { createRelease, type Node } from '../helpers/nodes-rig.ts'
import { noPostgres, PostgresServer } from '../helpers/postgres.ts'
import { ONLY_FULL } from '../helpers/tier.ts'

const SESSIONS = 48

/** A column that the next release writes, and this one does not know. */
const MIGRATION = `{
    sql: \`
      ALTER TABLE llm_proxy.sessions ADD COLUMN mood text;
      ALTER TABLE llm_proxy.turns ADD COLUMN moods bigint NOT NULL DEFAULT 0;
      CREATE INDEX turns_by_mood ON llm_proxy.turns (moods);
      CREATE TABLE llm_proxy.moods (id bigint PRIMARY KEY);
    \`,
    adds: true,
  }`

t.test(
  `${SESSIONS} sessions while nodes are upgraded and downgraded`,
  { skip: noPostgres || ONLY_FULL },
  async (t) => {
    const folder = t.testdir({})
    const next = createRelease(`${folder}/next`, MIGRATION)
    const server = await PostgresServer.start({ fsync: 'on' })
    t.teardown(() => server.end())
    const db = await server.newDatabase()
    const codes: unknown[] = []
    const figures = await runNodesKilled(t, {
      ...{ balancer: 'round robin', db, sessions: SESSIONS, requests: 5, folder },
      faults: async (rig, agents) => {
        const [first, second, third] = rig.nodes as [Node, Node, Node]
        const steps = [
          { node: first, launcher: next },
          { node: second, launcher: next },
          { node: first, launcher: undefined },
          { node: third, launcher: next },
        ]
        for (const [index, { node, launcher }] of steps.entries()) {
          await agents.untilRead((index + 1) / (steps.length + 2))
          codes.push(await node.drain())
          await node.start(launcher)
        }
        await killInRotation({ ...rig, nodes: [second] }, agents, 1)
      },
    })
    t.comment(JSON.stringify(figures))
    t.strictSame(codes, [0, 0, 0, 0], 'each node releases its sessions and ends cleanly')
    t.equal(figures.finished, SESSIONS, 'every rollout has completed')
    t.equal(figures.lost, 0, 'every delivered response is recorded')
    t.equal(figures.untrained, 0, 'every delivered response is trained')
    t.equal(figures.twice, 0, 'no turn is trained twice or undelivered')
    t.equal(figures.listed, SESSIONS, 'each is listed once')
    const database = new URL(db).pathname.slice(1)
    const [leases] = await server.query(
      'SELECT count(DISTINCT schema)::int AS releases FROM llm_proxy.proxies WHERE ended = 0',
      database,
    )
    t.strictSame(leases, { releases: 2 }, 'both releases have served it to the end')
  },
)
