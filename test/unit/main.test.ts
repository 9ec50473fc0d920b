import { mock } from 'node:test'
import { setImmediate as nextIteration } from 'node:timers/promises'
import t from 'tap'
import { startServer } from '../../src/main.ts'
import { loadConfig } from '../../src/proxy/config/load.ts'
import { SERVE } from '../../src/proxy/config/options/serve.ts'
import { createListingLogger } from '../helpers/listing-logger.ts'
import { inProcess } from '../helpers/store-in-process.ts'

const SWEEP_INTERVAL_MS = 60_000

t.test('a server that cannot listen leaves nothing running', async (t) => {
  mock.timers.enable({ apis: ['setInterval'] })
  t.teardown(() => mock.timers.reset())
  const { logger, lines } = createListingLogger()
  const platform = { spawn: inProcess, listen: () => Promise.reject(new Error('the port is in use')) }
  const config = { ...loadConfig(SERVE, {}, {}), db: `${t.testdir({})}/proxy.db` }
  await t.rejects(startServer(config, { logger, platform }), { message: 'the port is in use' })
  lines.length = 0
  mock.timers.tick(SWEEP_INTERVAL_MS)
  await nextIteration()
  await nextIteration()
  t.strictSame(lines, [], 'the closed database is not swept')
})
