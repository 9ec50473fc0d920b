/**
 * `npm run sim:plants`: plants each fault into a copy of the code and lets the simulator search for it, from the first
 * seed on and without hints. A fault that is not found, or cannot be planted because the code has changed, is a
 * failure. `--known` tries a fault's own seed before the others, for a gate that does not have ten minutes.
 */
import { spawn } from 'node:child_process'
import { cpSync, mkdtempSync, readFileSync, rmSync, symlinkSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { parseArgs } from 'node:util'
import { PLANTS, type Plant } from './plants.ts'

const ROOT = join(import.meta.dirname, '../..')
/** The simulator and the code that it runs; the models and pages beside it are not changed. */
const COPIED = ['package.json', 'src', 'test/sim']

const { values } = parseArgs({
  options: {
    /** The number of seeds that are tried for each fault. */
    seeds: { type: 'string', default: '1000' },
    only: { type: 'string' },
    jobs: { type: 'string', default: '2' },
    known: { type: 'boolean', default: false },
  },
})

const plants = PLANTS.filter(({ name }) => values.only === undefined || name.includes(values.only))
const waiting = [...plants]
let found = 0
await Promise.all(Array.from({ length: Number(values.jobs) }, work))
console.log(`${found} of ${plants.length} planted faults were found`)
if (found < plants.length) process.exitCode = 1

async function work(): Promise<void> {
  const folder = mkdtempSync(join(tmpdir(), 'llm-proxy-plant-'))
  try {
    for (const path of COPIED) cpSync(join(ROOT, path), join(folder, path), { recursive: true })
    symlinkSync(join(ROOT, 'node_modules'), join(folder, 'node_modules'))
    for (let plant = waiting.shift(); plant !== undefined; plant = waiting.shift()) {
      const { seed, promise } = await look(plant, folder).catch((error: Error) => ({
        seed: undefined,
        promise: error.message,
      }))
      if (seed !== undefined) found += 1
      console.log(
        seed === undefined
          ? `NOT FOUND: ${plant.name} ${promise ?? ''}`
          : `seed ${seed}: ${plant.name} (${promise})`,
      )
      for (const { file } of plant.edits) cpSync(join(ROOT, file), join(folder, file))
    }
  } finally {
    rmSync(folder, { recursive: true, force: true })
  }
}

async function look(
  { name, seed: known, edits }: Plant,
  folder: string,
): Promise<{ seed?: string; promise?: string }> {
  for (const { file, find, put } of edits) {
    const path = join(folder, file)
    const code = readFileSync(path, 'utf8')
    if (code.split(find).length !== 2)
      throw new Error(`'${name}' cannot be planted: ${file} does not have its text exactly once`)
    writeFileSync(
      path,
      code.replace(find, () => put),
    )
  }
  const found = values.known && known !== undefined ? foundIn(await run(folder, String(known))) : {}
  return found.seed === undefined ? foundIn(await run(folder, `1..${values.seeds}`)) : found
}

function foundIn(output: string): { seed?: string; promise?: string } {
  const [, seed, promise] = /^seed (\d+): (.*)$/m.exec(output) ?? []
  return { ...(seed !== undefined && { seed }), ...(promise !== undefined && { promise }) }
}

function run(folder: string, seeds: string): Promise<string> {
  const child = spawn(process.execPath, [join(folder, 'test/sim/run.ts'), '--first', '--seeds', seeds], {
    cwd: folder,
    // Most of the code is the same for each fault.
    env: { ...process.env, NODE_COMPILE_CACHE: join(folder, 'compiled') },
    stdio: ['ignore', 'pipe', 'inherit'],
  })
  let output = ''
  child.stdout.setEncoding('utf8').on('data', (text: string) => {
    output += text
  })
  return new Promise((resolve) => child.once('close', () => resolve(output)))
}
