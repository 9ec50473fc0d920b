import { spawnSync } from 'node:child_process'
import t from 'tap'
import { formatLine } from '../../../src/cli/logger.ts'

const line = (fields: object) =>
  formatLine(JSON.stringify({ level: 'info', time: '2026-11-28T10:11:12.345Z', ...fields }))

t.test('a line for people has the time, the level, the message and the fields', async (t) => {
  const text = line({ event: 'engine_up', engine: 'http://e:1', models: ['a', 'b'], msg: 'Engine is up' })
  t.equal(text, '10:11:12 INFO  Engine is up engine=http://e:1 models=["a","b"]\n')
})

t.test('reason, note and warning follow the message', async (t) => {
  const down = { event: 'engine_down', engine: 'e', reason: 'no answer within 5 s', msg: 'Engine is down' }
  t.equal(line({ ...down, level: 'warn' }), '10:11:12 WARN  Engine is down: no answer within 5 s engine=e\n')
})

t.test("an error's message follows, and its stack only at level error", async (t) => {
  const err = { type: 'Error', message: 'disk full', stack: 'Error: disk full\n    at f (a.js:1:2)' }
  t.equal(line({ level: 'warn', err, msg: 'Failed' }), '10:11:12 WARN  Failed: disk full\n')
  t.equal(
    line({ level: 'error', err, msg: 'Failed' }),
    '10:11:12 ERROR Failed: disk full\n    at f (a.js:1:2)\n',
  )
  t.equal(line({ level: 'error', err: 'text', msg: 'Failed' }), '10:11:12 ERROR Failed: text\n')
})

t.test('values with spaces are quoted, and control characters cannot reach the terminal', async (t) => {
  const text = line({
    state: 'not now',
    worker_id: 'w\u001b[2J',
    reason: 'a\nb\u0007',
    msg: 'Worker is down',
  })
  t.equal(text, '10:11:12 INFO  Worker is down: a b state="not now" worker_id=w [2J\n')
})

t.test('a JSON line contains no control character, and its values are unchanged', async (t) => {
  const reason = 'a\u009b2J\u202e\u0007b'
  const script = `
    import { createLogger } from './src/cli/logger.ts'
    createLogger('info', 'json').info({ reason: ${JSON.stringify(reason)} }, 'Engine is down')`
  const { stderr } = spawnSync(process.execPath, ['--input-type=module', '-e', script], { encoding: 'utf8' })
  t.equal(JSON.parse(stderr).reason, reason)
  t.match(stderr, /^[ -~]+\n$/)
})
