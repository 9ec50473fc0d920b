/** The stall guard that every proxy of a test has: see test/helpers/no-stalls.ts. */

import { join } from 'node:path'
import { text } from 'node:stream/consumers'
import t from 'tap'
import { startChild, waitForExit } from '../helpers/children.ts'

const PROGRAM = join(import.meta.dirname, '../helpers/planted-stall.ts')

async function runPlantedStall(...modes: string[]) {
  const child = startChild(process.execPath, [PROGRAM, ...modes])
  const [stderr, [code]] = await Promise.all([text(child.stderr), waitForExit(child)])
  return { code, stderr }
}

// test/unit/gate/groups.test.ts tests a proxy in the process of the file that sends the request.
t.test(
  'a request that blocks the event loop of a proxy in its own process fails the file that sent it',
  async (t) => {
    const { code, stderr } = await runPlantedStall('child')
    t.equal(code, 1)
    t.match(stderr, /^The event loop of a proxy was blocked for \d+ ms/)
  },
)

for (const [title, modes] of Object.entries({
  'the start of a proxy, other work of a test and a waiting thread do not count': [
    'starting',
    'aside',
    'waiting',
  ],
  'a file that stalls intentionally can declare it': ['purpose'],
})) {
  t.test(title, async (t) => t.same(await runPlantedStall(...modes), { code: 0, stderr: '' }))
}
