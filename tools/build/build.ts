/** `npm run build`: builds the standalone executable, `dist/llm-proxy`, or those of other machines beside it. */
import { statSync } from 'node:fs'
import { join, resolve } from 'node:path'
import { parseArgs } from 'node:util'
import { bundleProgram } from './bundle.ts'
import { writeExecutable } from './executable.ts'
import { HOST, openNodeBase, TARGETS } from './node-base.ts'

const ROOT = join(import.meta.dirname, '../..')

const USAGE = `usage: npm run build -- [--target ${TARGETS.join('|')}]`

async function build(target: string): Promise<void> {
  const output = resolve('dist', target === HOST ? 'llm-proxy' : `llm-proxy-${target}`)
  const base = await openNodeBase(target, join(ROOT, 'node_modules/.cache/llm-proxy'))
  await writeExecutable(await bundleProgram(ROOT, target), base, output)
  const megabytes = Math.round(statSync(output).size / 1e6)
  console.log(`${output} (${target}, ${megabytes} MB)`)
  if (target.startsWith('darwin'))
    console.log('macOS runs it once it is signed: codesign --sign - --force llm-proxy')
}

const { target } = parseArgs({ options: { target: { type: 'string', default: HOST } } }).values
if (TARGETS.includes(target)) await build(target)
else {
  console.error(USAGE)
  process.exitCode = 2
}
