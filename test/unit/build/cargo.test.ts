import { chmodSync } from 'node:fs'
import t from 'tap'
import { findCargoProblem } from '../../../tools/build/cargo.ts'

t.test('a cargo that is absent or has no toolchain is reported in one line', async (t) => {
  const folder = t.testdir({
    absent: {},
    broken: { cargo: '#!/bin/sh\nexit 1\n' },
    working: { cargo: '#!/bin/sh\n' },
  })
  for (const name of ['broken', 'working']) chmodSync(`${folder}/${name}/cargo`, 0o755)
  const problem = (name: string) => findCargoProblem({ PATH: `${folder}/${name}` })
  t.equal(problem('absent'), 'cargo is not installed')
  t.match(problem('broken'), /^cargo has no toolchain/)
  t.equal(problem('working'), undefined)
})
