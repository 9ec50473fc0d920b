import { readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { tableFromIPC } from 'apache-arrow'
import t from 'tap'
import { writeColumns } from '../../../../src/cli/rollout/rows-columns.ts'
import { readParquet } from '../../../../src/rollout/datasets/parquet-file.ts'
import { createAgentLoopOutputs } from '../../../helpers/agent-loop-outputs.ts'

const HEAD = { task_index: 0, sample_index: 0, instance_id: 'a' }
const DETAILS = {
  sampling_mask: [[5, 9], null, [7]],
  sampling_mask_logprobs: null,
  sampling_logprobs: [-0.1234567890123456, null, -2],
  top_logprob_ids: [[5, 6], null, [7, 8]],
  top_logprobs: [[-0.1, -2.345678901234567], null, [-0.5, null]],
  routed_experts: { dtype: 'uint8', shape: [5, 2, 3], known: [[0, 4]], data: 'AAECAw==' },
  weight_versions: [{ version: 'step-1', start: 0, end: 3 }],
}

function getLines(rows: readonly object[], folder: string): string {
  const path = join(folder, 'rows.jsonl')
  writeFileSync(path, rows.map((row) => `${JSON.stringify(row)}\n`).join(''))
  return path
}

/** Converts values as JSON does: 64-bit integers become numbers, vectors lists, and a struct its fields. */
function plain(value: unknown): unknown {
  return JSON.parse(
    JSON.stringify(value, (_key, inner) => (typeof inner === 'bigint' ? Number(inner) : inner)),
  )
}

for (const ending of ['parquet', 'arrow']) {
  t.test(`rows with and without token data are read back unchanged from one .${ending} file`, async (t) => {
    const folder = t.testdir({})
    const outputs = createAgentLoopOutputs(2).map((output) => ({ ...HEAD, ...output }))
    const lines = getLines([{ ...outputs[0], ...DETAILS }, outputs[1]!], folder)
    const path = join(folder, `rows.${ending}`)
    await writeColumns(path, lines)
    const read =
      ending === 'parquet'
        ? await Array.fromAsync(readParquet(path))
        : tableFromIPC(readFileSync(path)).toArray()
    const [first, second] = read.map(plain) as [Record<string, unknown>, Record<string, unknown>]
    const { sampling_mask_logprobs: absent, ...present } = DETAILS
    for (const [name, detail] of Object.entries(present)) {
      t.strictSame(first[name], detail, name)
      t.equal(second[name], null, `${name} of a row without token data`)
    }
    t.equal(first.sampling_mask_logprobs, absent)
    t.strictSame(first.response_logprobs, outputs[0]!.response_logprobs)
    t.strictSame(second.prompt_ids, outputs[1]!.prompt_ids)
    t.strictSame(second.metrics, outputs[1]!.metrics)
    t.notOk('prompt_logprobs' in first, 'token data that no row has is not a column')
  })
}

t.test(
  'the columns, and the fields of `extra_fields`, have the order of 0.1.0, each new name before its former one',
  async (t) => {
    const folder = t.testdir({})
    await writeColumns(join(folder, 'rows.arrow'), getLines([], folder))
    const { fields } = tableFromIPC(readFileSync(join(folder, 'rows.arrow'))).schema
    t.equal(
      fields.map(({ name }) => name).join(' '),
      'task_index sample_index instance_id task_digest prompt_ids response_ids response_mask response_logprobs ' +
        'reward_score num_turns metrics extra_fields',
    )
    t.equal(
      fields
        .at(-1)!
        .type.children.map(({ name }: { name: string }) => name)
        .join(' '),
      'trial_id session_id agent_status error row agent_role line reward_components turn_rewards finish_reason finished ' +
        'truncated prompt_truncated weight_version_min weight_version_max',
    )
  },
)

t.test(
  'an Arrow file without rows has its columns, and a row that cannot be written is an error',
  async (t) => {
    const folder = t.testdir({})
    const lines = getLines([], folder)
    await writeColumns(join(folder, 'rows.arrow'), lines)
    const table = tableFromIPC(readFileSync(join(folder, 'rows.arrow')))
    t.equal(table.numRows, 0)
    t.ok(table.schema.names.includes('response_ids'))
    await t.rejects(writeColumns(join(folder, 'no', 'rows.arrow'), lines), { code: 'start_failed' })
    const broken = join(folder, 'broken.jsonl')
    writeFileSync(broken, '{"prompt_ids"\n')
    await t.rejects(writeColumns(join(folder, 'broken.arrow'), broken), { code: 'start_failed' })
  },
)
