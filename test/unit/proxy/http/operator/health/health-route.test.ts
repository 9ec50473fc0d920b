import t from 'tap'
import { ProxyError } from '../../../../../../src/base/errors.ts'
import type { Backend } from '../../../../../../src/proxy/engines/port/backend.ts'
import { getHealth } from '../../../../../../src/proxy/http/operator/health/health-route.ts'
import type { TurnRunner } from '../../../../../../src/proxy/session/turn/run-turn.ts'

const backend = { mode: 'local', getStatus: () => ({ members: [], queued: 0 }) } as unknown as Backend
const runner = { isDraining: false } as TurnRunner
const getHealthWith = (check: () => Promise<void>) => getHealth({ backend, runner, store: { check } })

t.test('a store that can commit is healthy, and one that cannot is not', async (t) => {
  t.match(await getHealthWith(async () => {}), { code: 200, health: { status: 'ok' } })
  const failed = await getHealthWith(async () => {
    throw new ProxyError('store_failed', 'the disk is full')
  })
  t.match(failed, { code: 503, health: { status: 'store_failed' } })
})

t.test('a store that hangs is reported as failed, and may fail later', async (t) => {
  const { promise, reject } = Promise.withResolvers<void>()
  t.match(await getHealthWith(() => promise), { code: 503, health: { status: 'store_failed' } })
  reject(new ProxyError('store_failed', 'database is locked'))
})
