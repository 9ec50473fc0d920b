/** The table of models in docs/token-mode.md (UPDATE=1 writes it). */
import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import t from 'tap'
import { PARSER_FAMILIES } from '../../../../../src/proxy/tokens/parsers/choose-parser.ts'
import { readComparisons } from '../../../../differential/comparisons.ts'
import { FAMILIES } from '../../../../differential/families.ts'
import { generatedSection } from '../../../../helpers/generated-text.ts'
import { createModelTable } from '../../../../helpers/published-models.ts'

const PAGE = join(import.meta.dirname, '../../../../../docs/token-mode.md')

t.test('docs/token-mode.md lists what was compared', async (t) => {
  const table = createModelTable()
  t.equal(generatedSection(PAGE, 'models', table), table)
})

t.test('every family of the differential was compared, and its parser is known', async (t) => {
  const { templates, encoders } = readComparisons()
  t.same(Object.keys(templates).toSorted(), Object.keys(FAMILIES).toSorted())
  for (const [name, { parser, prompts }] of Object.entries({ ...templates, ...encoders })) {
    t.ok(PARSER_FAMILIES.has(parser), `${name}: ${parser}`)
    t.ok(prompts > 0, name)
  }
})

t.test('the numbers of the encoders are those of their own table', async (t) => {
  const rows = readFileSync(PAGE, 'utf8').matchAll(/^\| `(encoding_\w+\.py)` \| \w+ \| (\d+) \|/gm)
  const prompts: Record<string, number> = {}
  for (const [, file = '', count] of rows) prompts[file] = (prompts[file] ?? 0) + Number(count)
  const { encoders } = readComparisons()
  t.same(
    Object.fromEntries(Object.entries(encoders).map(([file, compared]) => [file, compared.prompts])),
    prompts,
  )
})
