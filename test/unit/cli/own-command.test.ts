import { execFileSync } from 'node:child_process'
import t from 'tap'
import { VERSION } from '../../../src/base/version.ts'
import { getOwnCommand } from '../../../src/cli/own-command.ts'

t.test('the own command runs this llm-proxy, from any directory', async (t) => {
  const [file, ...args] = getOwnCommand()
  t.equal(execFileSync(file, [...args, '--version'], { cwd: t.testdir(), encoding: 'utf8' }), `${VERSION}\n`)
})
