import { join } from 'node:path'
import t from 'tap'
import { planSamples, readSamples } from '../../../../src/cli/rollout/samples.ts'
import { writeParquet } from '../../../../src/rollout/datasets/parquet-file.ts'

t.test('tasks are the objects of a file, one per line', async (t) => {
  const path = join(
    t.testdir({ tasks: '{"instance_id": "a"}\r\n\n{"instance_id": "b", "prompt": "ü"}' }),
    'tasks',
  )
  t.strictSame(await readSamples(path), [{ instance_id: 'a' }, { instance_id: 'b', prompt: 'ü' }])
})

t.test('a task may contain U+2028 and U+2029, which JSON permits in strings', async (t) => {
  const task = { instance_id: 'a', prompt: 'one\u2028two\u2029three' }
  const path = join(t.testdir({ tasks: `${JSON.stringify(task)}\n` }), 'tasks')
  t.strictSame(await readSamples(path), [task])
})

t.test('tasks are the rows of a data set in Parquet', async (t) => {
  const path = join(t.testdir({}), 'train.parquet')
  const rows = [{ instance_id: 'a', prompt: [{ role: 'user', content: 'ü' }], extra_info: { index: 0 } }]
  await writeParquet(path, rows)
  t.strictSame(await readSamples(path), rows)
  await t.rejects(readSamples(join(path, '..', 'gone.parquet')), { code: 'start_failed' })
})

t.test('a line that is not an object is rejected with its number, as is a file without tasks', async (t) => {
  for (const [text, message] of [
    ['{"a": 1}\n{"a": ', /:2 is not JSON$/],
    ['{"a": 1}\n\n[1]\n', /:3 is not a JSON object$/],
    ['\n', /^--tasks: there is no task in /],
  ] as const) {
    const path = join(t.testdir({ tasks: text }), 'tasks')
    await t.rejects(readSamples(path), { code: 'config_invalid', message })
  }
  await t.rejects(readSamples('/no/such/file'), {
    code: 'config_invalid',
    message: '--tasks: cannot read /no/such/file',
  })
})

t.test('the samples of a task are consecutive', async (t) => {
  const samples = planSamples([{ instance_id: 'a' }, { instance_id: 'b' }], 2)
  t.strictSame(
    samples.map(({ taskIndex, sampleIndex, task }) => [taskIndex, sampleIndex, task.instance_id]),
    [
      [0, 0, 'a'],
      [0, 1, 'a'],
      [1, 0, 'b'],
      [1, 1, 'b'],
    ],
  )
})
