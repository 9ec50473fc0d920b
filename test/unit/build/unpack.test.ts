import { once } from 'node:events'
import { chmodSync, readdirSync, readFileSync, statSync, writeFileSync } from 'node:fs'
import { dirname, join } from 'node:path'
import { Worker } from 'node:worker_threads'
import t, { type Test } from 'tap'
import { type PackedFile, unpack, unpackGenerated } from '../../../src/base/unpack.ts'

/** Sets the temporary directory of this process until the end of the test. */
function setTemporaryDirectory(t: Test, path: string): void {
  const before = process.env.TMPDIR
  t.teardown(() => {
    if (before === undefined) delete process.env.TMPDIR
    else process.env.TMPDIR = before
  })
  process.env.TMPDIR = path
}

function unpackInto(t: Test, temporary: string, files: readonly PackedFile[]): string {
  setTemporaryDirectory(t, temporary)
  return unpack(files)
}

const file = (name: string, text: string): PackedFile => ({ name, content: Buffer.from(text) })

t.test('files that belong together are unpacked into one folder that other users cannot enter', async (t) => {
  const folder = unpackInto(t, t.testdir(), [file('a.json', '{}'), file('b.bin', 'b')])
  t.strictSame(readdirSync(folder).sort(), ['a.json', 'b.bin'])
  t.equal(readFileSync(join(folder, 'b.bin'), 'utf8'), 'b')
  for (const path of [folder, dirname(folder)]) t.equal(statSync(path).mode & 0o777, 0o700)
  t.equal(statSync(join(folder, 'b.bin')).mode & 0o777, 0o600)
})

t.test('unpacking again finds the existing files, and other contents go to another folder', async (t) => {
  const temporary = t.testdir()
  const first = unpackInto(t, temporary, [file('a', 'version 1')])
  const { ino } = statSync(join(first, 'a'))
  t.equal(unpackInto(t, temporary, [file('a', 'version 1')]), first)
  t.equal(
    statSync(join(first, 'a')).ino,
    ino,
    'a thread that loads it now gets the files of the other threads',
  )
  t.not(unpackInto(t, temporary, [file('a', 'version 2')]), first)
})

t.test('threads that unpack at the same time all get the same file', async (t) => {
  const TMPDIR = t.testdir()
  const module = new URL('../../../src/base/unpack.ts', import.meta.url)
  const code = `
    const { parentPort, workerData: gate } = require('node:worker_threads')
    import(${JSON.stringify(module)}).then(({ unpack }) => {
      parentPort.postMessage('ready')
      Atomics.wait(gate, 0, 0)
      const folder = unpack([{ name: 'a', content: Buffer.alloc(20_000_000, 'a') }])
      parentPort.postMessage(require('node:fs').statSync(folder + '/a').ino)
    })`
  const gate = new Int32Array(new SharedArrayBuffer(4))
  const threads = Array.from(
    { length: 4 },
    () => new Worker(code, { eval: true, env: { TMPDIR }, workerData: gate }),
  )
  await Promise.all(threads.map((thread) => once(thread, 'message')))
  const inodes = threads.map(async (thread) => (await once(thread, 'message'))[0])
  Atomics.store(gate, 0, 1)
  Atomics.notify(gate, 0)
  t.equal(new Set(await Promise.all(inodes)).size, 1)
})

t.test('a partial file that a crash left is replaced', async (t) => {
  const temporary = t.testdir()
  const folder = unpackInto(t, temporary, [file('a', 'the whole')])
  writeFileSync(join(folder, 'a'), 'the wh')
  unpackInto(t, temporary, [file('a', 'the whole')])
  t.equal(readFileSync(join(folder, 'a'), 'utf8'), 'the whole')
  t.strictSame(readdirSync(folder), ['a'])
})

t.test('a folder that another user could have written to is rejected', async (t) => {
  const own = `llm-proxy-${process.getuid!()}`
  const root = t.testdir({
    open: { [own]: {} },
    linked: { [own]: t.fixture('symlink', '../elsewhere') },
    elsewhere: {},
    taken: { [own]: 'a file' },
  })
  chmodSync(join(root, 'open', own), 0o777)
  chmodSync(join(root, 'elsewhere'), 0o700)
  for (const name of ['open', 'linked', 'taken']) {
    t.throws(() => unpackInto(t, join(root, name), [file('a', 'a')]), {
      code: 'start_failed',
      message: `cannot unpack into ${join(root, name)}, set TMPDIR to another directory: `,
    })
  }
})

t.test('a missing temporary directory is an error that names the remedy', async (t) => {
  t.throws(() => unpackInto(t, '/nowhere', [file('a', 'a')]), {
    code: 'start_failed',
    message: 'cannot unpack into /nowhere, set TMPDIR to another directory: ',
  })
})

t.test('files that are expensive to make are made once, and again if one of them is damaged', async (t) => {
  setTemporaryDirectory(t, t.testdir())
  let times = 0
  const make = () => {
    times += 1
    return [file('b', 'second'), file('a', 'first')]
  }
  const folder = unpackGenerated('key', make)
  t.equal(unpackGenerated('key', make), folder)
  t.equal(times, 1)
  t.not(unpackGenerated('other', make), folder)
  for (const damage of ['a', 'digest']) {
    writeFileSync(join(folder, damage), 'fi')
    unpackGenerated('key', make)
    t.equal(readFileSync(join(folder, 'a'), 'utf8'), 'first')
  }
  t.equal(times, 4)
  process.env.TMPDIR = '/nowhere'
  t.throws(() => unpackGenerated('key', make), { code: 'start_failed', message: /set TMPDIR/ })
})
