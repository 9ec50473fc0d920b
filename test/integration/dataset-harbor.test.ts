import { existsSync, statSync, utimesSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import t, { type Test } from 'tap'
import { readParquet } from '../../src/rollout/datasets/parquet-file.ts'
import { runLlmProxy } from '../helpers/llm-proxy.ts'

const task = (instruction: string, config = '') => ({ 'task.toml': config, 'instruction.md': instruction })

function createTaskFolder(t: Test): string {
  return t.testdir({
    train: {
      b: { ...task('Fix the bug.\n', '[metadata]\ncategory = "debugging"\ntags = ["python"]\n'), tests: {} },
      a: task('Schreib „ünï“ 🎉', '[metadata]\nlevel = 1\n[agent]\nenv = { API_KEY = "sk-secret" }\n'),
      org: { c: task('c'), '.hidden': task('h') },
      '.git': task('not a task'),
      'no-instruction': { 'task.toml': '' },
      'no-config': { 'instruction.md': 'x' },
      'bad-toml': task('x', 'a = = 1'),
      'bad-metadata': task('x', 'metadata = 1'),
      blank: task(' \n'),
      assets: { images: { png: {} } },
      'README.md': 'not a directory',
    },
    val: { one: task('v', '[metadata]\nlevel = 1.5\n') },
    empty: { nothing: {} },
  })
}

const runDataset = (...args: string[]) => runLlmProxy(['dataset', 'harbor', ...args])

t.test('task directories become rows with the columns of verl, one file per split', async (t) => {
  const folder = createTaskFolder(t)
  const out = join(folder, 'deep', 'out')
  const { code, stdout, stderr } = await runDataset(
    ...['--train', join(folder, 'train'), '--val', join(folder, 'val'), '--out', out],
  )
  t.equal(code, 0, stderr)
  const rows = await Array.fromAsync(readParquet(join(out, 'train.parquet')))
  t.same(
    rows.map((row) => row.instance_id),
    ['a', 'b', 'org/c'],
    'in the order of their names, independent of the file system',
  )
  const path = join(folder, 'train', 'b')
  t.strictSame(rows[1], {
    data_source: 'harbor',
    prompt: [{ role: 'user', content: 'Fix the bug.\n' }],
    ability: 'debugging',
    reward_model: { style: 'rule', ground_truth: '' },
    extra_info: {
      split: 'train',
      index: 1,
      task_id: 'b',
      local_path: path,
      task_metadata: { level: null, category: 'debugging', tags: ['python'] },
    },
    instance_id: 'b',
    local_task_path: path,
  })
  t.match(rows[0], { prompt: [{ content: 'Schreib „ünï“ 🎉' }], ability: 'agent' })
  t.notMatch(JSON.stringify(rows), /sk-secret/, 'other content of task.toml is omitted')
  t.match(await Array.fromAsync(readParquet(join(out, 'val.parquet'))), [
    { extra_info: { split: 'val', index: 0, task_metadata: { level: 1.5, category: null } } },
  ])
  t.match(stdout, /train\.parquet: 3 tasks, written\n/)
  for (const line of [
    'skipped 1: no instruction.md (no-instruction)',
    'skipped 2: no task.toml (assets, no-config)',
    'skipped 1: instruction.md is empty (blank)',
    'skipped 1: metadata in task.toml is not a table (bad-metadata)',
  ]) {
    t.ok(stdout.includes(`  ${line}\n`), line)
  }
  t.match(stdout, / {2}skipped 1: task\.toml line 1: .+ \(bad-toml\)\n/)
  t.match(stdout, /val\.parquet: 1 task, written\n$/)
})

t.test('a second run rewrites only changed files, and reports them', async (t) => {
  const folder = createTaskFolder(t)
  const file = join(folder, 'train.parquet')
  const runAgain = () => runDataset('--train', join(folder, 'train'), '--out', folder)
  await runAgain()
  utimesSync(file, 1, 1)
  t.match((await runAgain()).stdout, /train\.parquet: 3 tasks, unchanged/)
  t.equal(statSync(file).mtimeMs, 1_000)
  writeFileSync(join(folder, 'train', 'a', 'instruction.md'), 'Something else')
  t.match((await runAgain()).stdout, /train\.parquet: 3 tasks, written/)
  t.match(await Array.fromAsync(readParquet(file)), [{ prompt: [{ content: 'Something else' }] }, {}, {}])
})

t.test('a limit takes the first tasks by name of each split; a data source names the set', async (t) => {
  const folder = createTaskFolder(t)
  const { stdout } = await runDataset(
    ...['--train', join(folder, 'train'), '--out', folder, '--limit', '2', '--data-source', 'mine'],
  )
  t.match(stdout, /train\.parquet: 2 of 3 tasks, written/)
  t.match(await Array.fromAsync(readParquet(join(folder, 'train.parquet'))), [
    { instance_id: 'a', data_source: 'mine' },
    { instance_id: 'b' },
  ])
})

t.test('a directory that is itself a task is one', async (t) => {
  const folder = createTaskFolder(t)
  await runDataset('--train', join(folder, 'train', 'b'), '--out', folder)
  t.match(await Array.fromAsync(readParquet(join(folder, 'train.parquet'))), [
    { instance_id: 'b', local_task_path: join(folder, 'train', 'b') },
  ])
})

t.test('an invalid run ends with one line, and writes nothing', async (t) => {
  const folder = createTaskFolder(t)
  const [train, out] = [join(folder, 'train'), join(folder, 'out')]
  for (const [args, code, line] of [
    [['--train', train], 2, /--out is missing/],
    [['--out', out], 2, /--train, --val or both/],
    [
      ['--train', train, '--val', join(folder, 'empty'), '--out', out],
      1,
      /no Harbor task in .*empty .*no task\.toml/,
    ],
    [['--train', join(folder, 'nowhere'), '--out', out], 1, /cannot read the directory .*nowhere.*ENOENT/],
    [['--train', train, '--out', join(train, 'README.md')], 1, /cannot create the directory/],
  ] as const) {
    const { code: exit, stdout, stderr } = await runDataset(...args)
    t.match({ exit, stdout, stderr }, { exit: code, stdout: '', stderr: line }, args.join(' '))
  }
  t.notOk(existsSync(out))
})
