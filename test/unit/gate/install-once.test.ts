import { spawnSync } from 'node:child_process'
import { existsSync, mkdirSync, readdirSync, utimesSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import t from 'tap'
import { installOnce } from '../../helpers/install-once.ts'

t.test('when several processes need the same folder, one installs it and the others wait', async (t) => {
  const folder = join(t.testdir(), 'cache/program-1')
  let installed = 0
  const install = () =>
    installOnce(folder, async () => {
      await sleep(20)
      writeFileSync(join(folder, 'program'), '')
      installed += 1
    })
  const wait = () => install().then(() => existsSync(join(folder, 'program')))
  t.strictSame(await Promise.all([wait(), wait(), wait()]), [true, true, true])
  await install()
  t.equal(installed, 1)
})

t.test('an interrupted installation is removed and repeated', async (t) => {
  const folder = join(t.testdir(), 'program-1')
  mkdirSync(folder)
  writeFileSync(join(folder, 'half'), '')
  await installOnce(folder, async () => writeFileSync(join(folder, 'whole'), ''))
  t.strictSame(readdirSync(folder).sort(), ['ready', 'used', 'whole'])
})

t.test('a failed installation is not complete, and the next process retries', async (t) => {
  const folder = join(t.testdir(), 'program-1')
  await t.rejects(
    installOnce(folder, () => Promise.reject(new Error('no network'))),
    { message: 'no network' },
  )
  t.notOk(existsSync(join(folder, 'ready')))
  await installOnce(folder, async () => {})
  t.ok(existsSync(join(folder, 'ready')))
})

t.test(
  'a folder that no run has used for 30 days is removed, but none without the mark of an installation',
  async (t) => {
    const home = t.testdir()
    const cache = join(home, 'llm-proxy')
    const dayAgo = (days: number) => Date.now() / 1_000 - days * 86_400
    const installed = ['new-1', 'used-by-a-test', 'used-by-a-script', 'old-1', 'agents/old-1']
    for (const name of [...installed, 'wheels']) {
      const folder = join(cache, name)
      mkdirSync(folder, { recursive: true })
      const mark = join(folder, name === 'wheels' ? 'a.whl' : 'ready')
      writeFileSync(mark, '')
      utimesSync(mark, dayAgo(0), dayAgo(name === 'new-1' ? 29 : 32))
    }
    await installOnce(join(cache, 'used-by-a-test'), () => Promise.reject(new Error('it is complete')))
    const script = `. ${join(import.meta.dirname, '../../../tools/install-once')}
    install_once "$install_cache/used-by-a-script" false && remove_unused`
    const { status } = spawnSync('bash', ['-c', script], { env: { ...process.env, XDG_CACHE_HOME: home } })
    t.equal(status, 0)
    t.strictSame(readdirSync(cache).sort(), [
      'agents',
      'new-1',
      'used-by-a-script',
      'used-by-a-test',
      'wheels',
    ])
    t.strictSame(readdirSync(join(cache, 'agents')), [])
  },
)
