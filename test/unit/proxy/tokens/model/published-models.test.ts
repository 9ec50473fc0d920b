/** The tables of models and of encoders in docs/token-mode.md (UPDATE=1 writes them). */
import { join } from 'node:path'
import t from 'tap'
import { PARSER_FAMILIES } from '../../../../../src/proxy/tokens/parsers/choose-parser.ts'
import { readComparisons } from '../../../../differential/comparisons.ts'
import { FAMILIES } from '../../../../differential/families.ts'
import { generatedSection } from '../../../../helpers/generated-text.ts'
import { createEncoderTable, createModelTable } from '../../../../helpers/published-models.ts'

const PAGE = join(import.meta.dirname, '../../../../../docs/token-mode.md')

t.test('docs/token-mode.md lists the compared models and encoders', async (t) => {
  const table = createModelTable()
  t.equal(generatedSection(PAGE, 'models', table), table)
  const encoders = createEncoderTable()
  t.equal(generatedSection(PAGE, 'encoders', encoders), encoders)
})

t.test('every family of the differential was compared, and its parser is known', async (t) => {
  const { templates, encoders } = readComparisons()
  t.same(Object.keys(templates).toSorted(), Object.keys(FAMILIES).toSorted())
  for (const [name, { parser, conversations, prompts }] of Object.entries(templates)) {
    t.ok(PARSER_FAMILIES.has(parser), `${name}: ${parser}`)
    t.ok(conversations > 0 && prompts > 0, name)
  }
  for (const [name, { parser, modes }] of Object.entries(encoders)) {
    t.ok(PARSER_FAMILIES.has(parser), `${name}: ${parser}`)
    for (const [mode, { prompts, equal, rejectedByBoth, continued, extended, rewritten }] of Object.entries(
      modes,
    )) {
      t.equal(equal + rejectedByBoth, prompts, `${name}, ${mode}`)
      t.ok(extended + rewritten >= continued, `${name}, ${mode}: only rewritten text starts a branch`)
    }
  }
})
