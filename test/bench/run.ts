/**
 * npm run bench -- [--quick] [--rows small,large,…] [--targets direct,local,…] [--loads 'Messages, 16'] [--json FILE]
 *   [--cpu-prof FOLDER] [--events-per-write N] [--rounds N] [--write]
 *
 * Measures the proxy against the engine itself and against pass-throughs that record nothing. Every part runs in a
 * separate process; README.md beside this file explains the figures.
 */
import { execFileSync } from 'node:child_process'
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join, resolve } from 'node:path'
import { parseArgs } from 'node:util'
import { parseNames } from '../helpers/parse-names.ts'
import { PostgresServer } from '../helpers/postgres.ts'
import { Children } from './parts/children.ts'
import { LoadGenerator } from './parts/load-generator.ts'
import { describeMachine, formatMachine } from './parts/machine.ts'
import { replaceSections } from './parts/results-page.ts'
import { startEngine } from './parts/start-engine.ts'
import { renderTable } from './parts/table.ts'
import { DEFAULT_TARGETS, POSTGRES_TARGET, TARGET_NAMES } from './parts/targets.ts'
import { large, small, stream } from './rows/comparisons.ts'
import { crowd } from './rows/crowd.ts'
import { details } from './rows/details.ts'
import { disk } from './rows/disk.ts'
import { firstRow } from './rows/first-row.ts'
import { forest } from './rows/forest.ts'
import { heap } from './rows/heap.ts'
import { liveSessions } from './rows/live-sessions.ts'
import { openStreams } from './rows/open-streams.ts'
import { read } from './rows/read.ts'
import { bySize, replay } from './rows/replay.ts'
import type { Aim, Bench, RowResult } from './rows/row.ts'
import { token } from './rows/token.ts'

const ROWS = {
  small,
  large,
  stream,
  replay,
  'by-size': bySize,
  crowd,
  heap,
  'open-streams': openStreams,
  'live-sessions': liveSessions,
  disk,
  read,
  'first-row': firstRow,
  forest,
  details,
  token,
}

const { values: options } = parseArgs({
  options: {
    quick: { type: 'boolean', default: false },
    rows: { type: 'string', default: Object.keys(ROWS).join() },
    targets: { type: 'string', default: DEFAULT_TARGETS.join() },
    loads: { type: 'string', default: '' },
    json: { type: 'string' },
    'cpu-prof': { type: 'string' },
    'events-per-write': { type: 'string', default: '1' },
    rounds: { type: 'string' },
    write: { type: 'boolean', default: false },
  },
})

await main()

async function main(): Promise<void> {
  const rows = parseNames(options.rows, Object.keys(ROWS) as (keyof typeof ROWS)[])
  const targetNames = parseNames(options.targets, TARGET_NAMES)
  const folder = mkdtempSync(join(tmpdir(), 'llm-proxy-bench-'))
  process.once('exit', () => rmSync(folder, { recursive: true, force: true }))
  const machine = describeMachine(folder)
  console.log(formatMachine(machine))
  const startedAt = Date.now()
  await using children = new Children()
  await using stack = new AsyncDisposableStack()
  const eventsPerWrite = Number(options['events-per-write'])
  const bench: Bench = {
    engineUrl: (await startEngine(children, { eventsPerWrite })).url,
    eventsPerWrite,
    load: await LoadGenerator.start(children),
    folder,
    postgres: targetNames.includes(POSTGRES_TARGET) ? await startPostgres(stack) : undefined,
    quick: options.quick,
    rounds: options.rounds === undefined ? undefined : Number(options.rounds),
    targetNames,
    loads: options.loads,
    cpuProfileFolder: options['cpu-prof'] && resolve(options['cpu-prof']),
  }
  const results: RowResult[] = []
  for (const row of rows) {
    const result = await ROWS[row](bench)
    results.push(result)
    console.log(`\n${result.report}`)
  }
  // The figures of a quick run are not reliable, so no aim can be judged by them.
  if (!bench.quick) console.log(`\n${renderAims(results.flatMap((result) => result.aims))}`)
  console.log(`\n${Math.round((Date.now() - startedAt) / 1000)} s`)
  if (options.json)
    writeFileSync(
      options.json,
      `${JSON.stringify({ machine, quick: bench.quick, eventsPerWrite, results }, null, 2)}\n`,
    )
  if (options.write) writeResults(results, formatMachine(machine))
}

/** Starts a server that the default durability accepts. */
async function startPostgres(stack: AsyncDisposableStack): Promise<PostgresServer> {
  const server = await PostgresServer.start({ fsync: 'on' })
  stack.defer(() => server.end())
  return server
}

/** Replaces the rows' sections in RESULTS.md. Quick runs have no figures to write. */
function writeResults(results: readonly RowResult[], machine: string): void {
  if (options.quick) throw new Error('--write needs a run without --quick')
  const path = join(import.meta.dirname, 'RESULTS.md')
  const commit = execFileSync('git', ['rev-parse', '--short', 'HEAD'], { encoding: 'utf8' }).trim()
  const context = `Commit ${commit}, ${new Date().toISOString().slice(0, 10)}, ${machine}`
  writeFileSync(path, replaceSections(readFileSync(path, 'utf8'), results, context))
}

function renderAims(aims: readonly Aim[]): string {
  const rows = aims.map(({ what, wanted, measured, met }) => [what, wanted, measured, met ? 'met' : 'missed'])
  return renderTable(['aim', 'wanted', 'measured', ''], rows)
}
