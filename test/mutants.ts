/**
 * Mutation testing with StrykerJS: plants small faults in a file and lists those that its unit tests do not detect.
 *
 *     npm run test:mutants -- src/proxy/session/matching/prefix-index.ts src/proxy/session/turn/run-turn.ts
 *
 *     --sample 0.1   only a tenth of the lines, the same ones each time
 *     --seed 2       other lines
 *     --tests 3      at most 3 test files per file: its own, then those with the shortest import chain to it; default: 6
 *
 * A survivor is a test to write, or a change without an observable effect.
 */
import { spawnSync } from 'node:child_process'
import { existsSync, globSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { basename, dirname, join, relative } from 'node:path'
import { parseArgs } from 'node:util'
import { installFromNpm } from './agents/parts/install.ts'
import { createRandom } from './helpers/bad-network.ts'

const ROOT = join(import.meta.dirname, '..')
const MUTANT_MS = 20_000

const { values: options, positionals: files } = parseArgs({
  allowPositionals: true,
  options: {
    sample: { type: 'string', default: '1' },
    seed: { type: 'string', default: '1' },
    tests: { type: 'string', default: '6' },
  },
})

/** Returns unit tests of a file: its own, then the others by the length of their import chain to it. */
function getTests(file: string): string[] {
  const all = globSync('test/unit/**/*.test.ts', { cwd: ROOT })
  const tests = all
    .map((path) => ({ path, distance: getDistance(path, file) }))
    .filter(({ distance }) => distance < Infinity)
  const isOwn = ({ path }: { path: string }) => Number(basename(path) === `${basename(file, '.ts')}.test.ts`)
  tests.sort((a, b) => isOwn(b) - isOwn(a) || a.distance - b.distance || a.path.localeCompare(b.path))
  return tests.slice(0, Number(options.tests)).map(({ path }) => path)
}

/** Returns the length of the shortest import chain between two files. */
function getDistance(from: string, to: string): number {
  const seen = new Set([from])
  let level = [from]
  for (let distance = 0; level.length > 0; distance++) {
    if (level.includes(to)) return distance
    level = level.flatMap(getImports).filter((path) => !seen.has(path) && seen.add(path))
  }
  return Infinity
}

const importsByFile = new Map<string, string[]>()

function getImports(file: string): string[] {
  const found = importsByFile.get(file)
  if (found) return found
  const text = existsSync(join(ROOT, file)) ? readFileSync(join(ROOT, file), 'utf8') : ''
  const imports = [...text.matchAll(/(?:from |import\(|URL\()'(\.[^']+\.ts)'/g)].map(([, name]) =>
    relative(ROOT, join(ROOT, dirname(file), name!)),
  )
  importsByFile.set(file, imports)
  return imports
}

/** Returns what StrykerJS changes: the file, or a sample of its lines. */
function getParts(file: string): string[] {
  const share = Number(options.sample)
  if (share >= 1) return [file]
  const next = createRandom(Number(options.seed))
  const lines = readFileSync(join(ROOT, file), 'utf8').split('\n')
  return lines.flatMap((_, index) => (next() < share ? [`${file}:${index + 1}-${index + 1}`] : []))
}

async function run(): Promise<number> {
  const invalid = files.filter((file) => !/^src\/.*\.ts$/.test(file) || !existsSync(join(ROOT, file)))
  if (files.length === 0 || invalid.length > 0) {
    console.error(
      `expected paths of files in src, relative to the repository root: ${invalid.join(' ') || 'none given'}`,
    )
    return 2
  }
  const { folder } = await installFromNpm('@stryker-mutator/core', undefined, ['@stryker-mutator/tap-runner'])
  const config = join(mkdtempSync(join(tmpdir(), 'mutants-')), 'stryker.config.json')
  let failed = 0
  try {
    // One file at a time: each has separate tests.
    for (const file of files) {
      const testFiles = getTests(file)
      console.log(`\n${file}, with ${testFiles.join(' ') || 'no unit test that reaches it'}`)
      if (testFiles.length > 0) failed += mutate(folder, config, getParts(file), testFiles)
    }
  } finally {
    rmSync(dirname(config), { recursive: true, force: true })
  }
  return failed === 0 ? 0 : 1
}

/** @returns 1 if StrykerJS itself failed; a survivor is no failure */
function mutate(folder: string, config: string, parts: string[], testFiles: string[]): number {
  const nodeArgs = ['--require=./test/helpers/unrecorded.ts', '--import=./test/helpers/property-seed.ts']
  writeFileSync(
    config,
    JSON.stringify({
      plugins: [join(folder, 'node_modules/@stryker-mutator/tap-runner/dist/src/index.js')],
      testRunner: 'tap',
      tap: { testFiles, nodeArgs: [...nodeArgs, '-r', '{{hookFile}}', '{{testFile}}'] },
      mutate: parts,
      coverageAnalysis: 'perTest',
      concurrency: 1,
      timeoutMS: MUTANT_MS,
      // Node strips types, but not in files below a folder node_modules.
      tempDirName: join(dirname(config), 'sandbox'),
      tsconfigFile: 'none',
      ignorePatterns: ['/python', '/train-demo', '.tap', '/test/{bench,sim,slow,browser}'],
      reporters: ['clear-text'],
      clearTextReporter: { allowColor: false, logTests: false, reportTests: false },
      logLevel: 'warn',
      checkers: [],
    }),
  )
  const stryker = join(folder, 'node_modules/@stryker-mutator/core/bin/stryker.js')
  const env = { ...process.env, PROPERTY_SEED: '1' }
  return spawnSync(process.execPath, [stryker, 'run', config], { cwd: ROOT, stdio: 'inherit', env })
    .status === 0
    ? 0
    : 1
}

process.exitCode = await run()
