/** The faults that `npm run sim:plants` plants: each must find its place, which takes a second here and an hour there. */
import { readFileSync } from 'node:fs'
import t from 'tap'
import { PLANTS } from '../sim/plants.ts'

t.test('each edit of a plant is of a line that is there', async (t) => {
  for (const { name, edits } of PLANTS)
    for (const { file, find } of edits)
      t.equal(readFileSync(file, 'utf8').split(find).length, 2, `${name}: ${find.trim()}, once`)
})
