import { existsSync, mkdirSync, readdirSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import t from 'tap'
import { installOnce } from '../../helpers/install-once.ts'

t.test('of several that want the same folder at once, one installs it and the others wait', async (t) => {
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

t.test('an installation that was interrupted is removed, and made again', async (t) => {
  const folder = join(t.testdir(), 'program-1')
  mkdirSync(folder)
  writeFileSync(join(folder, 'half'), '')
  await installOnce(folder, async () => writeFileSync(join(folder, 'whole'), ''))
  t.strictSame(readdirSync(folder).sort(), ['ready', 'whole'])
})

t.test('one that fails is not complete, and the next one tries', async (t) => {
  const folder = join(t.testdir(), 'program-1')
  await t.rejects(
    installOnce(folder, () => Promise.reject(new Error('no network'))),
    { message: 'no network' },
  )
  t.notOk(existsSync(join(folder, 'ready')))
  await installOnce(folder, async () => {})
  t.ok(existsSync(join(folder, 'ready')))
})
