import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import t from 'tap'
import { replaceSections } from '../../bench/parts/results-page.ts'

const BENCH = join(import.meta.dirname, '../../bench')
const PAGE =
  '# Results\n\n<!-- bench:small -->\nold\n<!-- /bench:small -->\n\n<!-- bench:large -->\nkept\n<!-- /bench:large -->\n'

t.test('a measured row replaces its own section', async (t) => {
  const page = replaceSections(PAGE, [{ row: 'small', report: '| a |\n|---|' }], 'Commit abc.')
  t.equal(page, PAGE.replace('old', 'Commit abc.\n\n| a |\n|---|'))
})

t.test('a row without a section is an error', async (t) => {
  t.throws(() => replaceSections(PAGE, [{ row: 'none', report: '' }], ''), /no section bench:none/)
})

t.test('RESULTS.md has a section for each row of the benchmark', async (t) => {
  const page = readFileSync(join(BENCH, 'RESULTS.md'), 'utf8')
  const rows = /const ROWS = \{([^}]*)\}/.exec(readFileSync(join(BENCH, 'run.ts'), 'utf8'))![1]!
  for (const [, row] of rows.matchAll(/^ {2}'?([\w-]+)'?[:,]/gm)) {
    t.doesNotThrow(() => replaceSections(page, [{ row: row!, report: '' }], ''), row!)
  }
})
