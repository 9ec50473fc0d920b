/**
 * `npm run build:package`: builds the npm package in `dist/npm`. In addition to the launcher it contains `dist/` with a
 * script and its types for each file of `src/`, because Node does not run TypeScript below `node_modules`, and the
 * files that those refer to. Its `package.json` is derived from the repository's.
 */
import { execFileSync } from 'node:child_process'
import { cpSync, existsSync, globSync, mkdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { dirname, join, relative, resolve } from 'node:path'

const ROOT = join(import.meta.dirname, '../..')
const SOURCE = join(ROOT, 'src')
const PACKAGE = join(ROOT, 'dist/npm')
const OUTPUT = join(PACKAGE, 'dist')

/**
 * Fields of the repository's `package.json` that are copied; the others, and its `node-*` packages, are for
 * development.
 */
const FIELDS = [
  'name',
  'version',
  'description',
  'type',
  'license',
  'engines',
  'bin',
  'types',
  'exports',
  'dependencies',
]

/** Large packages that few users need: see `optional-package.ts`. */
const LEFT_TO_THE_USER = ['apache-arrow', /^@aws-sdk\//]

/** Types of dependencies that the package's own types refer to and that include none. */
const TYPES = ['@types/better-sqlite3', '@types/pg', '@types/ws']

/** References of the code to its own files that the compiler does not rewrite. */
const OWN_FILE = /(?:new URL\('([^']+)', import\.meta\.url\)|(?<=from )'([^']+\.json)')/g

rmSync(PACKAGE, { recursive: true, force: true })
mkdirSync(OUTPUT, { recursive: true })
compile()
for (const path of outputs('js')) writeFileSync(path, withOwnFiles(path, readFileSync(path, 'utf8')))
for (const name of ['bin', 'README.md', 'CHANGELOG.md', 'LICENSE'])
  cpSync(join(ROOT, name), join(PACKAGE, name), { recursive: true })
writeFileSync(join(PACKAGE, 'package.json'), `${JSON.stringify(packageJson(), null, 2)}\n`)

function packageJson(): object {
  const ours = JSON.parse(readFileSync(join(ROOT, 'package.json'), 'utf8'))
  const kept = Object.fromEntries(FIELDS.map((field) => [field, ours[field]]))
  const isLeft = ([name]: [string, unknown]) => LEFT_TO_THE_USER.some((left) => name.match(left))
  const all = Object.entries<string>(ours.dependencies)
  const left = Object.fromEntries(all.filter(isLeft))
  const types = TYPES.map((name) => [name, ours.devDependencies[name]])
  return {
    ...kept,
    dependencies: Object.fromEntries([...all.filter((each) => !isLeft(each)), ...types]),
    peerDependencies: left,
    peerDependenciesMeta: Object.fromEntries(Object.keys(left).map((name) => [name, { optional: true }])),
  }
}

function outputs(extension: string): string[] {
  return globSync(`**/*.${extension}`, { cwd: OUTPUT }).map((path) => join(OUTPUT, path))
}

function compile(): void {
  const tsc = join(ROOT, 'node_modules/.bin/tsc')
  execFileSync(tsc, ['-p', join(import.meta.dirname, 'tsconfig.json')], { stdio: 'inherit' })
  if (outputs('js').length === 0) throw new Error('the compiler has written no scripts')
}

function withOwnFiles(path: string, code: string): string {
  return code.replace(OWN_FILE, (whole, url: string | undefined, json: string | undefined) => {
    const name = (url ?? json)!
    const named = resolve(dirname(path), name)
    // A file outside of the folder is in the package unchanged: the launcher.
    if (!named.startsWith(OUTPUT)) return whole
    if (name.endsWith('.ts')) return whole.replace(/\.ts'/, ".js'")
    const source = join(SOURCE, relative(OUTPUT, named))
    // The addon is optional: without it, the library does its work.
    if (existsSync(source) || !name.endsWith('.node')) cpSync(source, named, { recursive: true })
    else console.warn(`${name} is left out: it was not built`)
    return whole
  })
}
