import t from 'tap'
import { listen } from '../../../../src/cli/rollout/listen.ts'
import { loadConfig } from '../../../../src/proxy/config/load.ts'
import { ROLLOUT } from '../../../../src/rollout/options.ts'

t.test(
  'options of a file of tasks are rejected with --listen, because they would have no effect',
  async (t) => {
    for (const [flags, name] of [
      [{ tasks: 'tasks.jsonl' }, '--tasks'],
      [{ output: 'rows.jsonl' }, '--output'],
      [{ samplesPerTask: '4' }, '--n'],
      [{ retryFailed: true }, '--retry-failed'],
    ] as const) {
      const address = '127.0.0.1:0'
      const config = loadConfig(ROLLOUT, { ...flags, listen: address, proxyUrl: 'http://127.0.0.1:1' }, {})
      await t.rejects(listen(config, address), {
        code: 'config_invalid',
        message: `${name} has no effect with --listen: a server runs the tasks that its clients send`,
      })
    }
  },
)
