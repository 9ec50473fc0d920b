import { setImmediate } from 'node:timers/promises'
import t from 'tap'
import { DeliveryReports } from '../../../../../src/proxy/http/nodes/delivery-reports.ts'
import type { DeliveryReport } from '../../../../../src/proxy/http/nodes/routes.ts'
import { FakeClock } from '../../../../helpers/fake-clock.ts'
import { createFakeNodeCoordination } from '../../../../helpers/fake-node-coordination.ts'

const TARGET = { id: 2, url: 'http://127.0.0.1:1' }
const report = (id: number): DeliveryReport => ({ id: String(id), delivered: true })

t.test('reports that are due while a batch is in flight are in the next one', async (t) => {
  const batches: number[] = []
  const { promise: sent, resolve } = Promise.withResolvers<boolean>()
  const reports = new DeliveryReports({
    send: (_target, batch) => {
      batches.push(batch.length)
      return batches.length === 1 ? sent : Promise.resolve(true)
    },
    getLossSignal: createFakeNodeCoordination().getLossSignal,
  })
  for (let id = 0; id < 1_501; id += 1) reports.add(TARGET, report(id))
  resolve(true)
  await reports.flush(5_000)
  t.strictSame(batches, [1, 1_000, 500])
})

t.test('a failed batch is retried until the lease of its node has ended', async (t) => {
  const shared = createFakeNodeCoordination()
  const clock = new FakeClock()
  let attempts = 0
  const send = async () => {
    attempts += 1
    if (attempts === 1) throw new Error('refused')
    return false
  }
  const reports = new DeliveryReports({ send, getLossSignal: shared.getLossSignal, clock })
  reports.add(TARGET, report(1))
  for (const count of [1, 2, 3]) {
    await setImmediate()
    t.equal(attempts, count)
    clock.advance(200)
  }
  shared.end(2)
  await reports.flush(1_000)
  reports.add(TARGET, report(2))
  await reports.flush(1_000)
  t.equal(attempts, 3, 'nothing is sent to an unavailable node')
})

t.test('a flush is limited in time, for any behaviour of the node', async (t) => {
  const clock = new FakeClock()
  const reports = new DeliveryReports({
    send: () => new Promise(() => {}),
    getLossSignal: createFakeNodeCoordination().getLossSignal,
    clock,
  })
  reports.add(TARGET, report(1))
  const flushed = reports.flush(2_000)
  clock.advance(2_000)
  await t.resolves(flushed)
})
