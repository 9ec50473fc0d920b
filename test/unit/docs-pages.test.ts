/** The pages of docs/ as a whole: the index lists each, links resolve, and a page has a limited length. */
import { existsSync, globSync, readFileSync } from 'node:fs'
import { dirname, join, normalize } from 'node:path'
import t from 'tap'

const ROOT = join(import.meta.dirname, '../..')
const PAGES = globSync('{README,CHANGELOG,CONTRIBUTING,docs/*,python/**/*,test/bench/README}.md', {
  cwd: ROOT,
  exclude: (path) => /node_modules|\.venv/.test(path),
}).sort()

/** Reference pages, which are looked up instead of read from top to bottom. */
const REFERENCES = [
  'agents',
  'configuration',
  'dialects',
  'http-api',
  'token-mode',
  'verl',
  'worker-protocol',
]

const read = (page: string) => readFileSync(join(ROOT, page), 'utf8')

/** Removes code, in which `](` and `#` have another meaning. */
const readProse = (page: string) => read(page).replace(/^```.*?^```$/gms, '')

/** Returns the anchors that GitHub generates for a page's headings. */
function getAnchors(page: string): Set<string> {
  const headings = [...readProse(page).matchAll(/^#+ (.*)$/gm)].map(([, heading]) => heading!)
  const plain = headings.map((heading) => heading.replace(/\[([^\]]*)\]\([^)]*\)/g, '$1').toLowerCase())
  return new Set(plain.map((heading) => heading.replace(/[^\p{L}\p{N}_\- ]/gu, '').replaceAll(' ', '-')))
}

t.test('docs/README.md lists every page in one section', async (t) => {
  const listed = [...read('docs/README.md').matchAll(/^\| \[([\w-]+\.md)\]\(\1\) \|/gm)].map(
    ([, page]) => page!,
  )
  const pages = globSync('docs/*.md', { cwd: ROOT }).map((path) => path.slice('docs/'.length))
  t.strictSame(listed.sort(), pages.filter((page) => page !== 'README.md').sort())
})

t.test('links between pages lead to existing files and headings', async (t) => {
  for (const page of PAGES) {
    for (const [, link] of readProse(page).matchAll(/\]\(([^)\s]+)\)/g)) {
      if (/^https?:/.test(link!)) continue
      const [path, anchor] = link!.split('#') as [string, string?]
      const target = path === '' ? page : normalize(join(dirname(page), path))
      const leads = existsSync(join(ROOT, target)) && (anchor === undefined || getAnchors(target).has(anchor))
      t.ok(leads, `${page}: ${link}`)
    }
  }
})

t.test('a page that is not a reference has at most 2,500 words, without generated text', async (t) => {
  for (const page of globSync('docs/*.md', { cwd: ROOT })) {
    if (REFERENCES.some((name) => page === `docs/${name}.md`)) continue
    const words = read(page)
      .replace(/<!-- (\S.*) -->.*?<!-- \/\1 -->/gs, '')
      .split(/\s+/).length
    t.ok(words <= 2_500, `${page}: ${words}`)
  }
})

t.test(
  "pages other than generated text and trainers' recipes have at most 45,000 words together",
  async (t) => {
    const isLeftOut = /docs\/(configuration|http-api|verl|trl|trainers|nemo-gym|your-trainer)\.md$/
    const pages = globSync('{README,docs/*,test/bench/*}.md', { cwd: ROOT }).filter(
      (page) => !isLeftOut.test(page),
    )
    const words = pages.flatMap((page) =>
      read(page)
        .replace(/<!-- (\S.*) -->.*?<!-- \/\1 -->/gs, '')
        .split(/\s+/)
        .filter((word) => /\w/.test(word)),
    )
    t.ok(words.length <= 45_000, `${words.length}`)
  },
)

t.test('the differences from engines that remain are a closed list: an addition needs a reason', (t) => {
  const section = /^## Remaining differences from the engine\n(.*?)^## /ms.exec(read('docs/engines.md'))![1]!
  const rows = section.split('\n').filter((line) => line.startsWith('|'))
  t.equal(rows.length - 2, 17, 'resolved ones are removed from the list')
  for (const row of rows) t.match(row, /^\| .*\| .+ \| .+ \|$|^\|[-|]+\|$|^\| \|/)
  t.end()
})
