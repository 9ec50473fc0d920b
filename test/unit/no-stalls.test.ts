/** The stall guard that every proxy of a test has: see test/helpers/no-stalls.ts. */

import { join } from 'node:path'
import { text } from 'node:stream/consumers'
import t from 'tap'
import { ended, startChild } from '../helpers/children.ts'

const PROGRAM = join(import.meta.dirname, '../helpers/planted-stall.ts')

async function getEnd(...ways: string[]) {
  const child = startChild(process.execPath, [PROGRAM, ...ways])
  const [stderr, [code]] = await Promise.all([text(child.stderr), ended(child)])
  return { code, stderr }
}

// test/unit/gate/groups.test.ts tests a proxy in the process of the file that sends the request.
t.test(
  'a request that blocks the event loop of a proxy in its own process fails the file that sent it',
  async (t) => {
    const { code, stderr } = await getEnd('child')
    t.equal(code, 1)
    t.match(stderr, /^The event loop of a proxy stood still for \d+ ms/)
  },
)

for (const [title, ways] of Object.entries({
  'the start of a proxy, other work of a test and a waiting thread do not count': [
    'starting',
    'aside',
    'waiting',
  ],
  'a file that stalls intentionally can declare it': ['purpose'],
})) {
  t.test(title, async (t) => t.same(await getEnd(...ways), { code: 0, stderr: '' }))
}
