import t from 'tap'
import { formatJson, formatNumber, renderTable, toPrintable } from '../../../src/cli/table.ts'

t.test('columns are as wide as their widest cell, numbers on the right', async (t) => {
  const columns = [
    { header: 'name', value: (row: [string, number]) => row[0] },
    { header: 'n', value: (row: [string, number]) => String(row[1]), align: 'right' as const },
  ]
  t.equal(
    renderTable(columns, [
      ['a', 1],
      ['longer', 100],
    ]),
    ['NAME      N', 'a         1', 'longer  100'].join('\n'),
  )
})

t.test('a table without rows is its headers, and no line ends in white space', async (t) => {
  const columns = [
    { header: 'name', value: () => 'x' },
    { header: 'completion', value: () => '' },
  ]
  t.equal(renderTable(columns, []), 'NAME  COMPLETION')
  t.equal(renderTable(columns, [1]).split('\n')[1], 'x')
})

t.test('text from a model cannot control the terminal', async (t) => {
  t.equal(toPrintable('a\u001b[2Jb\u0007c\r\nd\u009b31me'), 'a [2Jb c d 31me')
  t.equal(toPrintable('\u001b[1;32mok\u001b[0m'), 'ok', 'removed colours leave no characters behind')
  t.equal(toPrintable('a\u202eb'), 'a⟨U+202E⟩b')
  const value = { a: '\u009b2J\u202e\u{e0041}\u001b é' }
  t.equal(formatJson(value), '{"a":"\\u009b2J\\u202e\\udb40\\udc41\\u001b é"}')
  t.same(JSON.parse(formatJson(value, 2)), value)
})

t.test('long text is cut, and the cut is marked', async (t) => {
  t.equal(toPrintable('abcdef', 4), 'abc…')
  t.equal(toPrintable('abcd', 4), 'abcd')
})

t.test('numbers are printed without the error of binary rounding', async (t) => {
  t.equal(formatNumber(0.1 + 0.2 + 3.02), '3.32')
  t.equal(formatNumber(-1 / 3), '-0.333333333333')
  t.equal(formatNumber(1e-7), '1e-7')
  t.equal(formatNumber(12), '12')
})
