/**
 * Checks or writes the table of slow test files in CONTRIBUTING.md, from the output of `npm test -- --reporter=tap`.
 *
 *     npm run test:slowest -- LOG           fails if a file is slow, also when run alone, or a file of the table did not run
 *     npm run test:slowest -- LOG --write   writes the table
 */
import { spawnSync } from 'node:child_process'
import { readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { parseArgs } from 'node:util'

interface FileTime {
  path: string
  ms: number
}

const ROWS = 20
/** The machine may be busy, or slower than that of the table: a file is slow only if it exceeds both limits. */
const MAX_RATIO = 3
const MAX_EXCESS_MS = 20_000
const HEADER = '| file | seconds |\n|---|---|\n'
const TABLE = /\| file \| seconds \|\n\|---\|---\|\n((?:\|.*\|\n)*)/

/** Returns the files of a run, slowest first: those with a separate process and those within groups. */
export function parseFileTimes(tap: string): FileTime[] {
  return [...tap.matchAll(/^(?: {4})?(?:not )?ok \d+ - (test\/\S+\.test\.ts) # time=([\d.]+)ms$/gm)]
    .map(([, path, ms]) => ({ path: path!, ms: Number(ms) }))
    .sort((a, b) => b.ms - a.ms)
}

/** Returns the page with a table of these times. */
export function replaceTable(page: string, times: readonly FileTime[]): string {
  const rows = times.slice(0, ROWS).map(({ path, ms }) => `| \`${path}\` | ${(ms / 1000).toFixed(1)} |\n`)
  return page.replace(TABLE, () => HEADER + rows.join(''))
}

/** @throws Error if the page has no such table */
export function parseTable(page: string): FileTime[] {
  const [, rows] = TABLE.exec(page) ?? []
  if (rows === undefined) throw new Error('the page has no table of slow test files')
  return [...rows.matchAll(/`(.+)` \| ([\d.]+)/g)].map(([, path, s]) => ({
    path: path!,
    ms: Number(s) * 1000,
  }))
}

/**
 * Returns the files of a run that are slower than the table allows, corrected for the speed of the machine: the median of
 * the ratios of all files.
 */
function findSlow(table: readonly FileTime[], times: readonly FileTime[]): FileTime[] {
  const now = new Map(times.map(({ path, ms }) => [path, ms]))
  const ratios = table.flatMap(({ path, ms }) => now.get(path)! / ms || []).sort((a, b) => a - b)
  const slowness = Math.max(1, ratios[Math.floor(ratios.length / 2)] ?? 1)
  const listed = new Map(table.map(({ path, ms }) => [path, ms]))
  const shortest = Math.min(...listed.values())
  return times.filter(({ path, ms }) => {
    const expected = slowness * (listed.get(path) ?? shortest)
    return ms > MAX_RATIO * expected && ms > expected + MAX_EXCESS_MS
  })
}

/** Returns the differences of a run from the table as messages. */
export function listDifferences(table: readonly FileTime[], times: readonly FileTime[]): string[] {
  const paths = new Set(times.map(({ path }) => path))
  const missing = table.filter(({ path }) => !paths.has(path)).map(({ path }) => `${path} did not run`)
  const slow = findSlow(table, times).map(({ path, ms }) => `${path} took ${(ms / 1000).toFixed(1)} s`)
  return [...missing, ...slow]
}

/** Runs a file alone, since a stall of a busy machine does not recur. */
function measureAlone({ path }: FileTime): FileTime[] {
  const args = ['tap', '--reporter=tap', '--disable-coverage', path]
  const { stdout } = spawnSync('npx', args, { encoding: 'utf8', maxBuffer: 256 * 1024 * 1024 })
  return parseFileTimes(stdout)
}

if (import.meta.main) {
  const { values, positionals } = parseArgs({
    options: { write: { type: 'boolean' } },
    allowPositionals: true,
  })
  const times = parseFileTimes(readFileSync(positionals[0]!, 'utf8'))
  const file = join(import.meta.dirname, '..', 'CONTRIBUTING.md')
  const page = readFileSync(file, 'utf8')
  if (values.write) writeFileSync(file, replaceTable(page, times))
  else {
    const table = parseTable(page)
    const slow = findSlow(table, times)
    const measured = new Map(slow.flatMap(measureAlone).map(({ path, ms }) => [path, ms]))
    const found = listDifferences(
      table,
      times.map(({ path, ms }) => ({ path, ms: Math.min(ms, measured.get(path) ?? ms) })),
    )
    for (const line of found)
      console.error(`${line}: make it faster, move it to test/slow, or rewrite the table`)
    process.exitCode = found.length === 0 ? 0 : 1
  }
}
