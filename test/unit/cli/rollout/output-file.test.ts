import { appendFileSync, existsSync, readFileSync, rmSync, truncateSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import fc from 'fast-check'
import t, { type Test } from 'tap'
import { OutputFile } from '../../../../src/cli/rollout/output-file.ts'
import { planSamples, type SamplePlan } from '../../../../src/cli/rollout/samples.ts'
import { readParquet } from '../../../../src/rollout/datasets/parquet-file.ts'
import { createAgentLoopOutputs } from '../../../helpers/agent-loop-outputs.ts'
import { limitRuns } from '../../../helpers/tier.ts'

const SAMPLES = planSamples([{ instance_id: 'ä' }, { instance_id: 'b' }, {}], 2)
/** The number of branches, and so of rows, of each sample. */
const ROWS = [1, 3, 2, 1, 1, 2]

function getRows(path: string) {
  return readFileSync(path, 'utf8')
    .trim()
    .split('\n')
    .map((line) => JSON.parse(line))
}

/**
 * Appends the samples that the file lacks.
 * @returns the number of appended samples
 */
async function appendMissing(path: string, samples: readonly SamplePlan[] = SAMPLES): Promise<number> {
  const output = await OutputFile.open(path)
  const missing = output.selectMissing(samples)
  await Promise.all(
    missing.map((sample) => output.append(sample, createAgentLoopOutputs(ROWS[samples.indexOf(sample)]!))),
  )
  await output.close()
  return missing.length
}

function pathFor(t: Test): string {
  return join(t.testdir({}), 'rollouts.jsonl')
}

t.test('each row of a sample names its sample', async (t) => {
  const path = pathFor(t)
  t.equal(await appendMissing(path), 6)
  t.match(getRows(path).slice(0, 4), [
    { task_index: 0, sample_index: 0, instance_id: 'ä', response_mask: [1, 0, 1], metrics: { num_rows: 1 } },
    { task_index: 0, sample_index: 1, instance_id: 'ä' },
    { task_index: 0, sample_index: 1, instance_id: 'ä' },
    { task_index: 0, sample_index: 1, instance_id: 'ä' },
  ])
  t.match(getRows(path).at(-1), { task_index: 2, sample_index: 1, instance_id: null })
})

t.test('a file that one run writes is locked against others until that run has ended', async (t) => {
  const path = pathFor(t)
  const output = await OutputFile.open(path)
  const message = `${path} is in use by another llm-proxy (process ${process.pid}): stop that one, or name another file`
  await t.rejects(OutputFile.open(path), { code: 'start_failed', message })
  await output.append(SAMPLES[0]!, createAgentLoopOutputs(1))
  await output.close()
  t.equal(await appendMissing(path), 5, 'and it contains the rows of the first run')
})

t.test('recorded samples are not missing, while additional samples of the same tasks are', async (t) => {
  const path = pathFor(t)
  await appendMissing(path)
  t.equal(await appendMissing(path), 0)
  const output = await OutputFile.open(path)
  t.teardown(() => output.close())
  const more = planSamples([{ instance_id: 'ä' }, { instance_id: 'b' }, {}], 3)
  t.strictSame(
    output.selectMissing(more),
    more.filter(({ sampleIndex }) => sampleIndex === 2),
  )
})

t.test("rows of other tasks are detected by the tasks' content, also without instance ids", async (t) => {
  const getTasks = (...prompts: string[]) =>
    planSamples(
      prompts.map((prompt) => ({ prompt, index: { n: 1 } })),
      1,
    )
  const path = pathFor(t)
  t.equal(await appendMissing(path, getTasks('train 0', 'train 1')), 2)
  const output = await OutputFile.open(path)
  t.teardown(() => output.close())
  const others = {
    code: 'config_invalid',
    message: `${path} has rows of other tasks: task 0 is another one there; choose another --output`,
  }
  t.throws(() => output.selectMissing(getTasks('test 0', 'test 1', 'test 2')), others)
  t.throws(() => output.selectMissing(getTasks('train 1', 'train 0')), others, 'in another order')
  const sameInAnotherOrder = planSamples([{ index: { n: 1 }, prompt: 'train 0' }], 1)
  t.strictSame(output.selectMissing(sameInAnotherOrder), [], 'the order of columns is irrelevant')
})

t.test('a file of an earlier version is continued by its instance ids', async (t) => {
  const path = pathFor(t)
  await appendMissing(path)
  const before = readFileSync(path, 'utf8').replaceAll(/"task_digest":"[^"]*",/g, '')
  writeFileSync(path, before)
  t.equal(await appendMissing(path), 0)
  const output = await OutputFile.open(path)
  t.teardown(() => output.close())
  t.throws(() => output.selectMissing(planSamples([{ instance_id: 'b' }], 1)), {
    message: /task 0 is ä there/,
  })
})

t.test('wherever the file was cut off, a continued run has each sample once and complete', async (t) => {
  const path = pathFor(t)
  await appendMissing(path)
  const full = readFileSync(path)
  await fc.assert(
    fc.asyncProperty(fc.nat(full.length), async (length) => {
      truncateSync(path, 0)
      appendFileSync(path, full.subarray(0, length))
      await appendMissing(path)
      const rows = getRows(path)
      const keys = rows.map(({ task_index, sample_index }) => `${task_index}.${sample_index}`)
      const counts = SAMPLES.map(
        ({ taskIndex, sampleIndex }) => keys.filter((key) => key === `${taskIndex}.${sampleIndex}`).length,
      )
      return String(counts) === String(ROWS)
    }),
    { numRuns: limitRuns(60) },
  )
})

t.test('a Parquet file is made from the lines beside it once all samples are there', async (t) => {
  const lines = pathFor(t)
  await appendMissing(lines)
  const path = lines.replace('.jsonl', '.parquet')
  t.equal(await appendMissing(path), 6)
  t.notOk(existsSync(path), 'the file does not exist before the run is finished')
  const output = await OutputFile.open(path)
  t.strictSame(output.selectMissing(SAMPLES), [])
  await output.finish()
  await output.close()
  const asWritten = getRows(lines).map((row) => ({
    ...row,
    extra_fields: {
      ...row.extra_fields,
      reward_components: JSON.stringify(row.extra_fields.reward_components),
    },
  }))
  t.strictSame(await Array.fromAsync(readParquet(path)), asWritten)
  rmSync(`${path}.jsonl`)
  await t.rejects(OutputFile.open(path), {
    code: 'start_failed',
    message: /exists without \S+\.parquet\.jsonl/,
  })
})

t.test('a file with rows of other tasks, or of another format, is rejected and left unchanged', async (t) => {
  const path = pathFor(t)
  await appendMissing(path)
  const others = planSamples([{ instance_id: 'other' }], 1)
  await t.rejects(appendMissing(path, others), {
    code: 'config_invalid',
    message: /has rows of other tasks: task 0 is ä there/,
  })
  for (const [name, text] of Object.entries({
    'text.txt': 'hello\nworld\n',
    'tasks.jsonl': '{"instance_id": "a"}\n{"instance_id": "b"}\n',
    'holes.jsonl': getRows(path)
      .filter((_, index) => index !== 2)
      .map((row) => `${JSON.stringify(row)}\n`)
      .join(''),
  })) {
    const file = join(t.testdir({ [name]: text }), name)
    await t.rejects(OutputFile.open(file), {
      code: 'start_failed',
      message: `${file} is not a file of rollouts: choose another --output`,
    })
    t.equal(readFileSync(file, 'utf8'), text)
  }
  await t.rejects(OutputFile.open('/no/such/directory/rows.jsonl'), { code: 'start_failed' })
})
