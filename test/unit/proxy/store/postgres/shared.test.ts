/** What the log has of the nodes of a database. */
import t, { type Test } from 'tap'
import { PostgresShared } from '../../../../../src/proxy/store/postgres/shared.ts'
import { listingLogger } from '../../../../helpers/listing-logger.ts'

/** A node as each renewal of its lease finds the others: the next of these at each renewal, the last one from then on. */
function startNode(t: Test, ...renewals: { lease?: number; others?: object[]; freed?: number }[]) {
  const { logger, lines } = listingLogger()
  let beats = 0
  const call = async () => {
    const { lease = 1, others = [], freed = 0 } = renewals[Math.min(beats++, renewals.length - 1)]!
    const proxies = [{ id: lease, name: 'self', url: undefined, isDraining: false }, ...others]
    return { lease, proxies, over: [], freed, controls: [] }
  }
  const shared = new PostgresShared(
    { call } as unknown as ConstructorParameters<typeof PostgresShared>[0],
    logger,
  )
  t.teardown(() => shared.close())
  return { shared, lines }
}

const other = { id: 2, name: 'b', url: 'http://b', isDraining: false }

t.test('a node that joins, one that is lost and one that drains first are told apart', async (t) => {
  const draining = { id: 3, name: 'c', url: 'http://c', isDraining: true }
  const { shared, lines } = startNode(t, {}, { others: [other, draining] }, { freed: 7 })
  await shared.start()
  t.strictSame(lines, [])
  await shared.tell({})
  t.match(lines.splice(0), [
    { event: 'node_joined', level: 'info', node: 'b', url: 'http://b' },
    { event: 'node_joined', node: 'c' },
  ])
  await shared.tell({})
  t.match(lines, [
    { event: 'sessions_freed', level: 'info', sessions: 7 },
    { event: 'node_lost', level: 'warn', node: 'b', url: 'http://b' },
    { event: 'node_left', level: 'info', node: 'c' },
  ])
  t.equal(lines.length, 3)
})

t.test('a node whose lease was ended logs that, and not that it has lost itself', async (t) => {
  const { shared, lines } = startNode(t, { others: [other] }, { lease: 4, others: [other] })
  await shared.start()
  await shared.tell({})
  t.match(lines, [{ event: 'node_fenced', level: 'warn' }])
  t.equal(lines.length, 1)
})
