/**
 * `npm run build:package`: makes what the npm package has beside `bin/`: `dist/` with a script and its types for each
 * file of `src/`, because Node runs no TypeScript below `node_modules`, and the files that those name beside themselves.
 */
import { execFileSync } from 'node:child_process'
import { cpSync, globSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { dirname, join, relative, resolve } from 'node:path'

const ROOT = join(import.meta.dirname, '../..')
const SOURCE = join(ROOT, 'src')
const OUTPUT = join(ROOT, 'dist')

/** What our code calls its own files by, where the compiler does not look. */
const OWN_FILE = /(?:new URL\('([^']+)', import\.meta\.url\)|(?<=from )'([^']+\.json)')/g

removeOutput()
compile()
for (const path of outputs('js')) writeFileSync(path, withOwnFiles(path, readFileSync(path, 'utf8')))

/** Only what this makes: an executable may lie beside it. */
function removeOutput(): void {
  for (const path of [...outputs('js'), ...outputs('d.ts')]) rmSync(path)
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
    // What lies outside of the folder is in the package as it is: the launcher.
    if (!named.startsWith(OUTPUT)) return whole
    if (name.endsWith('.ts')) return whole.replace(/\.ts'/, ".js'")
    cpSync(join(SOURCE, relative(OUTPUT, named)), named, { recursive: true })
    return whole
  })
}
