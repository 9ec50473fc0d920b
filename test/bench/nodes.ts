/**
 * npm run nodes -- [--seconds 300] [--seed 1] [--ways haproxy,in-turn] [--no-throughput] [--json FILE]
 *
 * Four nodes on one PostgreSQL database, behind HAProxy and without, each with a separate link to it. Every 20 s a node
 * is killed and restarted, and between two kills a node is stopped, removed or cut off, or the database server restarts
 * (`parts/nodes-faults.ts`). Exits with 1 if a response was lost, or trained twice or never, or a rollout failed, or
 * nothing was measured. Then it measures the cost of a request with 1, 2 and 4 nodes.
 */
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { parseArgs } from 'node:util'
import { findProgram, PACKAGES } from '../helpers/balancer.ts'
import { DatabaseLink } from '../helpers/database-link.ts'
import { type NodesFigures, runNodesKilled } from '../helpers/nodes-killed.ts'
import { parseNames } from '../helpers/parse-names.ts'
import { PostgresServer } from '../helpers/postgres.ts'
import { describeMachine, formatMachine } from './parts/machine.ts'
import { injectNodeFaults } from './parts/nodes-faults.ts'
import { measureNodesThroughput } from './parts/nodes-throughput.ts'
import { renderTable } from './parts/table.ts'

const WAYS = ['haproxy', 'in-turn'] as const

const { values: options } = parseArgs({
  options: {
    seconds: { type: 'string', default: '300' },
    seed: { type: 'string', default: '1' },
    ways: { type: 'string', default: WAYS.join() },
    throughput: { type: 'boolean', default: true },
    json: { type: 'string' },
  },
  allowNegative: true,
})

const NODES = 4
const REQUESTS = 6
const COLUMNS = [
  'sessions',
  'finished',
  'read',
  'retries',
  'interrupted',
  'lost',
  'untrained',
  'twice',
] as const satisfies readonly (keyof NodesFigures)[]

/** The figures of one way to balance requests. */
type WayFigures = NodesFigures & { way: string; faults: Record<string, number> }

await main()

async function main(): Promise<void> {
  const ways = parseNames(options.ways, WAYS)
  const folder = mkdtempSync(join(tmpdir(), 'llm-proxy-nodes-'))
  process.once('exit', () => rmSync(folder, { recursive: true, force: true }))
  console.log(`${formatMachine(describeMachine(folder))}; seed ${options.seed}`)
  const server = await PostgresServer.start({ fsync: 'on', max_connections: '200' })
  const results: WayFigures[] = []
  try {
    for (const way of ways) {
      if (way === 'haproxy' && findProgram(way) === undefined)
        console.log(`HAProxy is not installed (${PACKAGES.haproxy})`)
      else results.push({ way, ...(await measure(server, way, join(folder, way))) })
    }
    if (results.length > 0)
      console.log(`\n${renderTable(['requests to', ...COLUMNS, 'seconds'], results.map(toRow))}`)
    for (const { way, faults } of results) console.log(`${way}: ${JSON.stringify(faults)}`)
    if (options.throughput && findProgram('haproxy') !== undefined)
      console.log(`\n${await measureNodesThroughput(server, folder)}`)
  } finally {
    await server.end()
  }
  if (options.json) writeFileSync(options.json, `${JSON.stringify(results, null, 2)}\n`)
  if (results.length === 0 || !results.every(isComplete)) process.exitCode = 1
}

async function measure(
  server: PostgresServer,
  way: string,
  folder: string,
): Promise<Omit<WayFigures, 'way'>> {
  await using stack = new AsyncDisposableStack()
  const teardown = (end: () => unknown) => stack.defer(async () => void (await end()))
  const database = new URL(await server.newDatabase()).pathname.slice(1)
  const links = Array.from({ length: NODES }, () => new DatabaseLink(server.port))
  const db: string[] = []
  for (const link of links) {
    db.push(server.url(database, await link.open()))
    teardown(() => link.close())
  }
  let faults = {}
  const figures = await runNodesKilled(
    { teardown },
    {
      ...{ balancer: way === 'in-turn' ? 'round robin' : 'haproxy', db, requests: REQUESTS, folder },
      faults: async ({ nodes }) => {
        faults = await injectNodeFaults(Number(options.seconds), Number(options.seed), {
          nodes,
          links,
          server,
        })
      },
    },
  )
  return { ...figures, faults }
}

function isComplete({ sessions, finished, lost, untrained, twice, listed }: NodesFigures): boolean {
  return finished === sessions && listed === sessions && lost + untrained + twice === 0
}

function toRow(measured: WayFigures): string[] {
  const counts = COLUMNS.map((name) => measured[name].toLocaleString('en-US'))
  return [measured.way, ...counts, measured.seconds.toFixed(1)]
}
