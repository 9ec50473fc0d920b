/**
 * `npm run sim:plants`: plants each fault into a copy of the code, and lets the simulator search for it from the first
 * seed on. A fault that the simulator does not find, or that does not match the code, is a failure. `--known` tries the
 * fault's known seed before the others, which is faster.
 */
import { spawn } from 'node:child_process'
import { cpSync, mkdtempSync, readFileSync, rmSync, symlinkSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { parseArgs } from 'node:util'
import { PLANTS, type Plant } from './plants.ts'

const ROOT = join(import.meta.dirname, '../..')
/** The simulator and the code that it runs. */
const COPIED = ['package.json', 'src', 'test/sim']

const { values } = parseArgs({
  options: {
    /** The number of seeds to try for each fault. */
    seeds: { type: 'string', default: '1000' },
    only: { type: 'string' },
    jobs: { type: 'string', default: '2' },
    known: { type: 'boolean', default: false },
  },
})

const plants = PLANTS.filter(({ name }) => values.only === undefined || name.includes(values.only))
if (plants.length === 0) throw new Error(`no planted fault has '${values.only}' in its name`)
const waiting = [...plants]
let found = 0
await Promise.all(Array.from({ length: Number(values.jobs) }, searchWaiting))
console.log(`${found} of ${plants.length} planted faults were found`)
if (found < plants.length) process.exitCode = 1

async function searchWaiting(): Promise<void> {
  const folder = mkdtempSync(join(tmpdir(), 'llm-proxy-plant-'))
  try {
    for (const path of COPIED) cpSync(join(ROOT, path), join(folder, path), { recursive: true })
    symlinkSync(join(ROOT, 'node_modules'), join(folder, 'node_modules'))
    for (let plant = waiting.shift(); plant !== undefined; plant = waiting.shift()) {
      const { seed, violation } = await search(plant, folder).catch((error: Error) => ({
        seed: undefined,
        violation: error.message,
      }))
      if (seed !== undefined) found += 1
      console.log(
        seed === undefined
          ? `NOT FOUND: ${plant.name} ${violation ?? ''}`
          : `seed ${seed}: ${plant.name} (${violation})`,
      )
      for (const { file } of plant.edits) cpSync(join(ROOT, file), join(folder, file))
    }
  } finally {
    rmSync(folder, { recursive: true, force: true })
  }
}

async function search(
  { name, seed: known, edits }: Plant,
  folder: string,
): Promise<{ seed?: string; violation?: string }> {
  for (const { file, find, put } of edits) {
    const path = join(folder, file)
    const code = readFileSync(path, 'utf8')
    if (code.split(find).length !== 2)
      throw new Error(`'${name}' cannot be planted: ${file} does not contain its text exactly once`)
    writeFileSync(
      path,
      code.replace(find, () => put),
    )
  }
  const found = values.known && known !== undefined ? parseViolation(await run(folder, String(known))) : {}
  return found.seed === undefined ? parseViolation(await run(folder, `1..${values.seeds}`)) : found
}

function parseViolation(output: string): { seed?: string; violation?: string } {
  const [, seed, violation] = /^seed (\d+): (.*)$/m.exec(output) ?? []
  return { ...(seed !== undefined && { seed }), ...(violation !== undefined && { violation }) }
}

function run(folder: string, seeds: string): Promise<string> {
  const child = spawn(process.execPath, [join(folder, 'test/sim/run.ts'), '--first', '--seeds', seeds], {
    cwd: folder,
    // Most of the code is the same for each fault, so the copies share compiled code.
    env: { ...process.env, NODE_COMPILE_CACHE: join(folder, 'compiled') },
    stdio: ['ignore', 'pipe', 'inherit'],
  })
  let output = ''
  child.stdout.setEncoding('utf8').on('data', (text: string) => {
    output += text
  })
  return new Promise((resolve) => child.once('close', () => resolve(output)))
}
