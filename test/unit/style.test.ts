/**
 * The rules of CONTRIBUTING.md for names and words, as counts that may only fall. `UPDATE=1` writes a lower
 * count into the baseline; a higher one needs other names, or an explicit change of this file.
 */
import { execFileSync } from 'node:child_process'
import { readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import t from 'tap'
import { findEmptyPatterns } from '../helpers/empty-patterns.ts'
import { measureStyle, type SourceText, type StyleMeasures } from '../helpers/style-measures.ts'

const ROOT = join(import.meta.dirname, '../..')
const BASELINE = join(import.meta.dirname, 'style-baseline.json')

function readFiles(...patterns: string[]): SourceText[] {
  const paths = execFileSync('git', ['ls-files', ...patterns], { cwd: ROOT, encoding: 'utf8' })
    .trim()
    .split('\n')
  return paths.map((path) => ({ path, text: readFileSync(join(ROOT, path), 'utf8') }))
}

t.test('names and words of the source are no worse than the baseline', async (t) => {
  const { measures, examples } = measureStyle(
    readFiles('src/**/*.ts', 'src/**/*.tsx'),
    readFiles('README.md', 'CONTRIBUTING.md', 'SECURITY.md', 'docs/*.md'),
  )
  const baseline: StyleMeasures = JSON.parse(readFileSync(BASELINE, 'utf8'))
  for (const key of Object.keys(measures) as (keyof StyleMeasures)[]) {
    t.ok(measures[key] <= baseline[key], `${key}: ${measures[key]} of ${baseline[key]}`, {
      found: examples[key].slice(-20),
    })
    if (process.env.UPDATE) baseline[key] = Math.min(baseline[key], measures[key])
  }
  if (process.env.UPDATE) writeFileSync(BASELINE, `${JSON.stringify(baseline, null, 2)}\n`)
  t.strictSame(measures, baseline, 'the baseline is as low as it can be (UPDATE=1 lowers it)')
})

t.test('no function of the tests is named for what it returns only (`somethingOf`)', async (t) => {
  t.strictSame(measureStyle(readFiles('test/**/*.ts'), []).examples.ofFunctions, [])
})

t.test('no pattern of `t.match` has an empty array or object, which matches any other', async (t) => {
  // `{ length: 0 }` matches an empty array; `t.strictSame` compares an object.
  const paths = readFiles('test/**/*.ts').map(({ path }) => path)
  t.strictSame(findEmptyPatterns(ROOT, paths, t.testdir({})), [])
})

t.test('empty patterns are found at any depth, and not where they verify something', async (t) => {
  const lines = [
    't.match(a, [])',
    't.match(await read({}, []), { a: { b: {} } })',
    "t.match(a, isEmpty ? [] : [{ b: 'c' }])",
    't.match(a, createPattern({ b: [] }))',
    't.match(a, [{}, ...(b ?? []).map(c), ...(isLast ? [] : [1])])',
    't.match(a, { b: { length: 0 } })',
    't.strictSame(a, {})',
    'text.match(/a/)',
  ]
  const directory = t.testdir({ 'a.ts': lines.join('\n'), project: {} })
  const found = findEmptyPatterns(directory, ['a.ts'], `${directory}/project`)
  t.strictSame(
    found,
    lines.slice(0, 4).map((line, index) => `a.ts:${index + 1} ${line}`),
  )
})

t.test('each measure counts what its name states', async (t) => {
  const code = [
    {
      path: 'a.ts',
      text: 'export interface AskedTurn {}\nclass ReaderOptions {}\nfunction textOf() {}\n  lineOf(a: string) {\n// nobody, nowhere\n',
    },
    {
      path: 'b.ts',
      text: "export type AskedTurn = 1\nfunction listOffset() {}\nconst a = 'is away by now'\n",
    },
  ]
  const pages = [{ path: 'a.md', text: 'It mends.\n"nobody" and `anew`\n```\nsomebody\n```\n' }]
  const { measures, typeCount } = measureStyle(code, pages)
  t.strictSame(measures, { participleTypes: 2, ofFunctions: 2, repeatedTypes: 1, codeWords: 3, pageWords: 1 })
  t.equal(typeCount, 2)
})
