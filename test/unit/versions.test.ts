/** The version is in package.json; files that cannot read it there repeat it. */
import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import t from 'tap'
import { VERSION } from '../../src/base/version.ts'

const ROOT = join(import.meta.dirname, '../..')

/** Patterns whose first group is the version. */
const VERSION_PATTERNS: Readonly<Record<string, RegExp>> = {
  'python/pyproject.toml': /^version = "([^"]+)"$/gm,
  Dockerfile: /image\.version="([^"]+)"/g,
  'deploy.yaml': /image: llm-proxy:(\S+)/g,
  'docs/deployment.md': /llm-proxy:(\d[^\s"@]*)/g,
  'CHANGELOG.md': /^## (\d\S*)/m,
}

t.test('all files that name the required Node version of the npm package agree', async (t) => {
  const read = (path: string) => readFileSync(join(ROOT, path), 'utf8')
  const needed = JSON.parse(read('package.json')).engines.node.replace('>=', '')
  t.match(read('docs/deployment.md'), `for Node ${needed} or\nnewer`)
  t.match(read('bin/llm-proxy'), `: [${needed.replace('.', ', ')}]\n`)
})

for (const [path, pattern] of Object.entries(VERSION_PATTERNS)) {
  t.test(`${path} names the version of package.json`, async (t) => {
    const text = readFileSync(join(ROOT, path), 'utf8')
    const found = pattern.global ? [...text.matchAll(pattern)] : [pattern.exec(text) ?? []]
    t.ok(found.length > 0)
    for (const [, version] of found) t.equal(version, VERSION)
  })
}
