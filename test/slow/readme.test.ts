import { globSync, readFileSync } from 'node:fs'
import { createServer } from 'node:net'
import { join } from 'node:path'
import t from 'tap'
import { linkCheckout, parseCommandBlocks, runBlock, startBlock } from '../helpers/documented-commands.ts'
import { until } from '../helpers/until.ts'

const ROOT = join(import.meta.dirname, '../..')

t.test('only marked fences are commands to run', async (t) => {
  const markdown = [
    '# Title',
    '```sh',
    'rm -rf /',
    '```',
    '```sh run',
    'echo a',
    'echo b',
    '```',
    '',
    '```sh run background',
    'serve',
    '```',
    '',
  ].join('\n')
  t.strictSame(parseCommandBlocks(markdown), [
    { line: 5, script: 'echo a\necho b\n', background: false },
    { line: 10, script: 'serve\n', background: true },
  ])
})

t.test('a block fails with its first command that fails, in a pipe too', async (t) => {
  const cwd = t.testdir()
  t.strictSame(await runBlock('echo a\nfalse | cat\necho b\n', cwd), { code: 1, output: 'a\n' })
  t.strictSame(await runBlock('echo a >&2\n', cwd), { code: 0, output: 'a\n' })
})

t.test('a background block that never listens is a failure', async (t) => {
  await t.rejects(startBlock('echo sorry\n', t.testdir()), {
    message: /^ended before it printed .*: sorry\n$/,
  })
})

for (const document of globSync('{README.md,docs/*.md}', { cwd: ROOT }).sort()) {
  const blocks = parseCommandBlocks(readFileSync(join(ROOT, document), 'utf8'))
  if (blocks.length === 0) continue
  t.test(`the commands of ${document} work`, { timeout: 600_000 }, async (t) => {
    const cwd = t.testdir()
    linkCheckout(ROOT, cwd)
    // The documentation's own port may be in use by another clone's run of this test.
    if (blocks.some(({ background }) => background)) await until(() => isFree(8080))
    for (const { line, script, background } of blocks) {
      if (background) {
        t.teardown(await startBlock(script, cwd))
        continue
      }
      const { code, output } = await runBlock(script, cwd)
      t.equal(code, 0, `${document}:${line}`, { output })
    }
  })
}

/** Returns whether a server of this machine could listen on a port. */
function isFree(port: number): Promise<boolean> {
  const server = createServer()
  return new Promise((resolve) => {
    server.once('error', () => resolve(false))
    server.listen(port, '127.0.0.1', () => server.close(() => resolve(true)))
  })
}
