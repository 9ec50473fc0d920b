/** The proxy supports every output parser that vLLM and SGLang register, or declares it unsupported. */
import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import t from 'tap'
import { findParser, UNSUPPORTED_PARSERS } from '../../../../../src/proxy/tokens/parsers/choose-parser.ts'
import { createParserTable, listNames, readEngineParsers } from '../../../../helpers/engine-parsers.ts'

const parsers = readEngineParsers()
const names = [...listNames(parsers).keys()]

t.test('each registered name is a supported format, or is declared unsupported', async (t) => {
  t.ok(names.length > 80)
  for (const name of names) {
    if (UNSUPPORTED_PARSERS.has(name)) {
      t.throws(() => findParser(name), {
        code: 'config_invalid',
        message: /is a parser of an engine/,
      })
    } else t.doesNotThrow(() => findParser(name), name)
  }
  t.same(
    [...UNSUPPORTED_PARSERS].filter((name) => !names.includes(name)),
    [],
    'no engine has it',
  )
  t.throws(() => findParser('hf'), { message: /auto selects it/ })
})

t.test('the documentation lists all of them', async (t) => {
  const page = readFileSync(join(import.meta.dirname, '../../../../../docs/token-mode.md'), 'utf8')
  const [, table] = /<!-- engine parsers -->\n([\s\S]*?)\n<!-- \/engine parsers -->/.exec(page) ?? []
  t.equal(table, createParserTable(parsers))
})
