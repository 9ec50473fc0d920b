import { readdirSync, readFileSync, statSync } from 'node:fs'
import { join } from 'node:path'
import { tableFromIPC } from 'apache-arrow'
import t from 'tap'
import { writeArrowGroups } from '../../../../src/rollout/datasets/arrow-file.ts'
import type { ColumnShape } from '../../../../src/rollout/datasets/shape.ts'

const COLUMNS = new Map<string, ColumnShape>([['text', { kind: 'text' }]])
const TEXT = 'x'.repeat(1_000_000)
const GROUPS = 12

t.test('a group is read after the previous ones have been written', async (t) => {
  const folder = t.testdir()
  const writtenBytes: number[] = []
  async function* groups() {
    for (let index = 0; index < GROUPS; index += 1) {
      const [file] = readdirSync(folder)
      writtenBytes.push(file === undefined ? 0 : statSync(join(folder, file)).size)
      yield [{ text: TEXT }]
    }
  }
  await writeArrowGroups(join(folder, 'rows.arrow'), COLUMNS, groups())
  // The streams between the writer and the file contain a few chunks.
  t.ok(writtenBytes.at(-1)! > (GROUPS - 4) * TEXT.length, `${writtenBytes}`)
  t.equal(tableFromIPC(readFileSync(join(folder, 'rows.arrow'))).numRows, GROUPS)
})

t.test('an error of the groups leaves no file', async (t) => {
  const folder = t.testdir()
  async function* groups() {
    yield [{ text: 'a' }]
    throw new Error('no more rows')
  }
  await t.rejects(writeArrowGroups(join(folder, 'rows.arrow'), COLUMNS, groups()), {
    code: 'start_failed',
    cause: { message: 'no more rows' },
  })
  t.same(readdirSync(folder), [])
})
