/** Generated text in the repository: a test compares it, and `UPDATE=1` rewrites it. */
import { mkdirSync, readFileSync, writeFileSync } from 'node:fs'
import { dirname } from 'node:path'

/** Returns the content of a file; with `UPDATE=1` in the environment it first writes `expected` to the file. */
export function generatedText(path: string, expected: string): string {
  if (process.env.UPDATE === '1') {
    mkdirSync(dirname(path), { recursive: true })
    writeFileSync(path, expected)
  }
  return readFileSync(path, 'utf8')
}

/** Does the same for the section of a file between `<!-- name -->` and `<!-- /name -->`. */
export function generatedSection(path: string, name: string, expected: string): string {
  const [open, close] = [`<!-- ${name} -->\n`, `\n<!-- /${name} -->`]
  const text = readFileSync(path, 'utf8')
  const start = text.indexOf(open) + open.length
  const end = text.indexOf(close, start)
  if (start < open.length || end < 0) throw new Error(`${path} has no section ${name}`)
  if (process.env.UPDATE === '1') writeFileSync(path, text.slice(0, start) + expected + text.slice(end))
  return process.env.UPDATE === '1' ? expected : text.slice(start, end)
}
