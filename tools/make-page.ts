/** `npm run build:page`: builds the inspector's page, one script and one style sheet, from `src/inspector/page/`. */
import { renameSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { build } from 'esbuild'

const SOURCE = join(import.meta.dirname, '../src/inspector/page')

const { outputFiles } = await build({
  entryPoints: [join(SOURCE, 'app.tsx'), join(SOURCE, 'style.css')],
  outdir: SOURCE,
  bundle: true,
  minify: true,
  write: false,
  format: 'esm',
  target: 'es2022',
  jsx: 'automatic',
  jsxImportSource: 'preact',
  logLevel: 'warning',
})
const textOf = (end: string) => outputFiles.find(({ path }) => path.endsWith(end))!.text
const page = { script: textOf('.js'), style: textOf('.css') }
// Written atomically: a concurrent reader finds the previous version, complete.
const [path, partial] = ['page.json', `page.json.${process.pid}`].map((name) =>
  join(SOURCE, '../routes', name),
)
writeFileSync(partial!, JSON.stringify(page))
renameSync(partial!, path!)
