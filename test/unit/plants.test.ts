/**
 * The faults that `npm run sim:plants` plants. Each must match its source line: this test checks that in a
 * second, the simulator needs an hour.
 */
import { readFileSync } from 'node:fs'
import t from 'tap'
import { PLANTS } from '../sim/plants.ts'

t.test('each edit of a planted fault matches an existing line', async (t) => {
  for (const { name, edits } of PLANTS)
    for (const { file, find } of edits)
      t.equal(readFileSync(file, 'utf8').split(find).length, 2, `${name}: ${find.trim()}, once`)
})
