/**
 * Hostile requests at two nodes, directly and behind each balancer of deploy/balancers.
 *
 *     ATTACKS=20000 PROPERTY_SEED=7 npx tap --timeout=3600 test/slow/fuzz/nodes.test.ts
 */
import t from 'tap'
import { BALANCERS } from '../../../deploy/balancers/make.ts'
import { type BalancerKind, findProgram, PACKAGES, startBalancer } from '../../helpers/balancer.ts'
import { startNodePair } from '../../helpers/node-pair.ts'
import { fuzzNodes } from '../../helpers/nodes-fuzz.ts'
import { noPostgres } from '../../helpers/postgres.ts'
import { IS_FULL } from '../../helpers/tier.ts'

const SEED = Number(process.env.PROPERTY_SEED ?? Math.floor(Math.random() * 1_000_000))
const ATTACKS = Number(process.env.ATTACKS ?? (IS_FULL ? 2_000 : 150))

t.test('hostile requests at two nodes get no data of other clients', { skip: noPostgres }, async (t) => {
  t.comment(`seed ${SEED}: repeat with PROPERTY_SEED=${SEED}`)
  const pair = await startNodePair(t)
  const folder = t.testdir({})
  const direct = await fuzzNodes(t, pair, { name: 'direct', attacks: ATTACKS, seed: SEED })
  t.comment(`two nodes: ${JSON.stringify(direct)}`)
  t.strictSame(direct.faults, [], 'at the nodes themselves')
  t.ok(direct.served > 20, 'while agents and trainers were served')
  for (const kind of Object.keys(BALANCERS) as BalancerKind[]) {
    const skip = findProgram(kind) === undefined && `${kind} is not installed (${PACKAGES[kind]})`
    await t.test(`behind ${kind}`, { skip }, async (t) => {
      const nodes = [pair.owner, pair.other].map(({ url }) => new URL(url).host)
      const url = await startBalancer(t, kind, nodes, folder)
      const attacks = Math.ceil(ATTACKS / 3)
      const figures = await fuzzNodes(t, pair, { name: kind, attacks, seed: SEED, urls: [url] })
      t.comment(`${kind}: ${JSON.stringify(figures)}`)
      t.strictSame(figures.faults, [])
      t.ok(figures.served > 5)
    })
  }
})
