/**
 * Keeps the table of slow test files in CONTRIBUTING.md. Reads what `npm test -- --reporter=tap` prints.
 *
 *     npm run test:slowest -- LOG           fails if a file is slow, also when run alone, or one of the table is gone
 *     npm run test:slowest -- LOG --write   writes the table
 */
import { spawnSync } from 'node:child_process'
import { readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { parseArgs } from 'node:util'

export interface FileTime {
  path: string
  ms: number
}

const ROWS = 20
/** A machine may be slower than the one of the table, and busy; a file that became slow is beyond both. */
const NOISE = 3
const NOISE_MS = 20_000
const HEADER = '| file | seconds |\n|---|---|\n'
const TABLE = /\| file \| seconds \|\n\|---\|---\|\n((?:\|.*\|\n)*)/

/** The files of a run, the slowest first: those of processes of their own, and those within groups. */
export function fileTimes(tap: string): FileTime[] {
  return [...tap.matchAll(/^(?: {4})?(?:not )?ok \d+ - (test\/\S+\.test\.ts) # time=([\d.]+)ms$/gm)]
    .map(([, path, ms]) => ({ path: path!, ms: Number(ms) }))
    .sort((a, b) => b.ms - a.ms)
}

/** @returns the page with a table of these times */
export function withTable(page: string, times: readonly FileTime[]): string {
  const rows = times.slice(0, ROWS).map(({ path, ms }) => `| \`${path}\` | ${(ms / 1000).toFixed(1)} |\n`)
  return page.replace(TABLE, () => HEADER + rows.join(''))
}

/** @throws Error if the page has no such table */
export function getTable(page: string): FileTime[] {
  const [, rows] = TABLE.exec(page) ?? []
  if (rows === undefined) throw new Error('there is no table of slow test files')
  return [...rows.matchAll(/`(.+)` \| ([\d.]+)/g)].map(([, path, s]) => ({
    path: path!,
    ms: Number(s) * 1000,
  }))
}

/**
 * Returns the files of a run that are slower than the table allows. The whole run is slower by the median of the ratios of
 * its files.
 */
export function findSlow(table: readonly FileTime[], times: readonly FileTime[]): FileTime[] {
  const now = new Map(times.map(({ path, ms }) => [path, ms]))
  const ratios = table.flatMap(({ path, ms }) => now.get(path)! / ms || []).sort((a, b) => a - b)
  const slowness = Math.max(1, ratios[Math.floor(ratios.length / 2)] ?? 1)
  const listed = new Map(table.map(({ path, ms }) => [path, ms]))
  const shortest = Math.min(...listed.values())
  return times.filter(({ path, ms }) => {
    const expected = slowness * (listed.get(path) ?? shortest)
    return ms > NOISE * expected && ms > expected + NOISE_MS
  })
}

/** Returns the differences of a run from the table, in words. */
export function complaints(table: readonly FileTime[], times: readonly FileTime[]): string[] {
  const paths = new Set(times.map(({ path }) => path))
  const gone = table.filter(({ path }) => !paths.has(path)).map(({ path }) => `${path} did not run`)
  const slow = findSlow(table, times).map(({ path, ms }) => `${path} took ${(ms / 1000).toFixed(1)} s`)
  return [...gone, ...slow]
}

/** Runs a file alone: a stall of a busy machine does not repeat itself. */
function measureAlone({ path }: FileTime): FileTime[] {
  const args = ['tap', '--reporter=tap', '--disable-coverage', path]
  const { stdout } = spawnSync('npx', args, { encoding: 'utf8', maxBuffer: 256 * 1024 * 1024 })
  return fileTimes(stdout)
}

if (import.meta.main) {
  const { values, positionals } = parseArgs({
    options: { write: { type: 'boolean' } },
    allowPositionals: true,
  })
  const times = fileTimes(readFileSync(positionals[0]!, 'utf8'))
  const file = join(import.meta.dirname, '..', 'CONTRIBUTING.md')
  const page = readFileSync(file, 'utf8')
  if (values.write) writeFileSync(file, withTable(page, times))
  else {
    const table = getTable(page)
    const slow = findSlow(table, times)
    const measured = new Map(slow.flatMap(measureAlone).map(({ path, ms }) => [path, ms]))
    const found = complaints(
      table,
      times.map(({ path, ms }) => ({ path, ms: Math.min(ms, measured.get(path) ?? ms) })),
    )
    for (const line of found)
      console.error(`${line}: make it faster, move it to test/slow, or write the table again`)
    process.exitCode = found.length === 0 ? 0 : 1
  }
}
