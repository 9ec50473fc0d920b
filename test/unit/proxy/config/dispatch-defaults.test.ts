import t from 'tap'
import { loadConfig } from '../../../../src/proxy/config/load.ts'
import { SERVE } from '../../../../src/proxy/config/options/serve.ts'
import { WORKER } from '../../../../src/proxy/config/options/worker.ts'
import { DISPATCH_DEFAULTS } from '../../../../src/proxy/engines/dispatch/dispatcher.ts'

t.test('the commands have the same defaults for waiting and serving as the backends', async (t) => {
  const { queueLimit, queueWaitMs, maxConcurrency, pauseLimitMs } = loadConfig(SERVE, {}, {})
  t.strictSame({ queueLimit, waitMs: queueWaitMs, maxConcurrency, pauseLimitMs }, DISPATCH_DEFAULTS)
  t.equal(loadConfig(WORKER, {}, {}).maxConcurrency, DISPATCH_DEFAULTS.maxConcurrency)
})
