/** `test/groups`, whose files run several test files in one process. */
import { spawnSync } from 'node:child_process'
import { globSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs'
import { join, relative } from 'node:path'
import t, { type Test } from 'tap'
import { listGroupFiles, listSeparateFiles } from '../../helpers/run-files.ts'

const ROOT = join(import.meta.dirname, '../../..')
const RUN_FILES = join(ROOT, 'test/helpers/run-files.ts')

t.test('each file of npm test and test:slow runs once, in a group or separately', async (t) => {
  const grouped = globSync('test/groups/{*,slow/*}.ts', { cwd: ROOT }).flatMap((group) => {
    const text = readFileSync(join(ROOT, group), 'utf8')
    const patterns = [...text.matchAll(/'(test\/[^']*)'/g)].map(([, pattern]) => pattern!)
    const files = listGroupFiles(patterns)
    t.ok(files.length > 1, `${group} has files`)
    return files
  })
  const all = globSync('test/{unit,conformance,integration,slow}/**/*.test.ts', { cwd: ROOT })
  t.strictSame([...grouped, ...listSeparateFiles()].sort(), all.sort())
})

/**
 * Runs these files as a group.
 * @param under the folder of the files within the test's folder
 * @param env additional environment variables
 * @returns its TAP output and exit code
 */
function runGroup(t: Test, files: Record<string, string>, under = 'files', env: NodeJS.ProcessEnv = {}) {
  const folder = join(t.testdir({}), under)
  mkdirSync(folder, { recursive: true })
  for (const [name, text] of Object.entries(files)) writeFileSync(join(folder, name), text)
  const group = join(folder, 'group.ts')
  const patterns = JSON.stringify(`${relative(ROOT, folder)}/*.test.ts`)
  writeFileSync(group, `import { runFiles } from ${JSON.stringify(RUN_FILES)}\nawait runFiles(${patterns})\n`)
  const options = { cwd: ROOT, encoding: 'utf8', env: { ...process.env, ...env } } as const
  const { stdout, status } = spawnSync(process.execPath, [group], options)
  return {
    lines: stdout.split('\n').map((line) => line.replace(/ # time=.*/, '')),
    status,
    folder: relative(ROOT, folder),
  }
}

const PASSES = `import t from 'tap'\nt.test('one', async (t) => t.ok(true))\n`

t.test(
  'a file that fails, or that cannot be loaded, is reported by its path, and the next one runs',
  async (t) => {
    const { lines, status, folder } = runGroup(t, {
      'a.test.ts': `import t from 'tap'\nt.test('one', async (t) => t.equal(1, 2))\n`,
      'b.test.ts': `throw new Error('not loaded')\n`,
      'c.test.ts': PASSES,
    })
    t.ok(lines.includes(`not ok 1 - ${folder}/a.test.ts`))
    t.ok(lines.includes(`not ok 2 - ${folder}/b.test.ts`))
    t.ok(lines.includes(`ok 3 - ${folder}/c.test.ts`))
    t.not(status, 0)
  },
)

t.test('a file that leaves a server open fails the group, which ends', async (t) => {
  const open = `import { createServer } from 'node:net'\ncreateServer().listen(0, '127.0.0.1')\n`
  const { lines, status } = runGroup(t, { 'a.test.ts': open + PASSES }, 'files', {
    GROUP_END_LIMIT_MS: '200',
  })
  t.ok(
    lines.some((line) => /^not ok .*files leave open handles: .*TCPServerWrap/.test(line)),
    lines.join('\n'),
  )
  t.equal(status, 1)
})

t.test('a helper that imports tap fails, because its tests would not be those of the file', async (t) => {
  const { lines, status, folder } = runGroup(t, {
    'a.test.ts': `import './helper.ts'\n`,
    'helper.ts': PASSES,
    'b.test.ts': PASSES,
  })
  t.ok(lines.includes(`not ok 1 - ${folder}/a.test.ts`))
  t.ok(lines.includes(`ok 2 - ${folder}/b.test.ts`))
  t.not(status, 0)
})

t.test('teardowns of a file run before the next file', async (t) => {
  const { status } = runGroup(t, {
    'a.test.ts': `import t from 'tap'\nprocess.env.OF_A = '1'\nt.teardown(() => delete process.env.OF_A)\n${'t.ok(true)'}\n`,
    'b.test.ts': `import t from 'tap'\nt.test('one', async (t) => t.equal(process.env.OF_A, undefined))\n`,
  })
  t.equal(status, 0)
})

t.test('a file that leaves the process changed fails', async (t) => {
  const changes = {
    environment: "process.env.LEFT = '1'",
    clock: 'globalThis.Date = class {} as typeof Date',
  }
  for (const [name, change] of Object.entries(changes)) {
    const { lines, status, folder } = runGroup(t, {
      'a.test.ts': `${PASSES}${change}\n`,
      'b.test.ts': PASSES,
    })
    t.ok(lines.includes(`not ok 2 - a file leaves the process changed: ${folder}/a.test.ts`), name)
    t.not(status, 0)
  }
})

/** Blocks the event loop of a server for longer than allowed. */
const STALLS = `
import { setTimeout } from 'node:timers/promises'
import t from 'tap'
import { burnCpu } from ${JSON.stringify(join(ROOT, 'test/helpers/loop-cpu.ts'))}
import { startWatched } from ${JSON.stringify(join(ROOT, 'test/helpers/no-stalls.ts'))}
t.test('one', async (t) => {
  await startWatched(async () => {})
  burnCpu(450)
  await setTimeout(50)
  t.ok(true)
})
`

t.test('a request that blocks the event loop of a proxy fails the file that sent it', async (t) => {
  const files = { 'a.test.ts': STALLS, 'b.test.ts': PASSES }
  const { lines, status, folder } = runGroup(t, files, 'test/integration')
  t.ok(lines.includes(`ok 1 - ${folder}/a.test.ts`))
  t.ok(
    lines.some((line) =>
      line.startsWith(`not ok 2 - ${folder}/a.test.ts: The event loop of a proxy was blocked`),
    ),
  )
  t.ok(lines.includes(`ok 3 - ${folder}/b.test.ts`))
  t.not(status, 0)
})
