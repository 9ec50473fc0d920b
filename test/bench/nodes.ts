/**
 * npm run nodes -- [--seconds 300] [--seed 1] [--ways haproxy,in-turn] [--no-throughput] [--json FILE]
 *
 * Four nodes on one PostgreSQL database, behind HAProxy and without, each with a separate link to it. Every 20 s a node
 * is killed and restarted, and between two kills a node is stopped, removed or cut off, or the database server restarts
 * (`parts/nodes-faults.ts`). Exits with 1 if a response was lost, or trained twice or never, or a rollout failed. Then
 * it measures the cost of a request with 1, 2 and 4 nodes.
 */
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { parseArgs } from 'node:util'
import { getProgram, PACKAGES } from '../helpers/balancer.ts'
import { DatabaseLink } from '../helpers/database-link.ts'
import { type NodesFigures, runNodesKilled } from '../helpers/nodes-killed.ts'
import { PostgresServer } from '../helpers/postgres.ts'
import { describeMachine, machineLine } from './parts/machine.ts'
import { faultsFor } from './parts/nodes-faults.ts'
import { nodesThroughput } from './parts/nodes-throughput.ts'
import { table } from './parts/table.ts'

const { values: options } = parseArgs({
  options: {
    seconds: { type: 'string', default: '300' },
    seed: { type: 'string', default: '1' },
    ways: { type: 'string', default: 'haproxy,in-turn' },
    throughput: { type: 'boolean', default: true },
    json: { type: 'string' },
  },
  allowNegative: true,
})

const NODES = 4
const CALLS = 6
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

type Measured = NodesFigures & { way: string; faults: Record<string, number> }

await main()

async function main(): Promise<void> {
  const folder = mkdtempSync(join(tmpdir(), 'llm-proxy-nodes-'))
  process.once('exit', () => rmSync(folder, { recursive: true, force: true }))
  console.log(`${machineLine(describeMachine(folder))}; seed ${options.seed}`)
  const server = await PostgresServer.start({ fsync: 'on', max_connections: '200' })
  const all: Measured[] = []
  try {
    for (const way of options.ways.split(',').filter(Boolean)) {
      if (way === 'haproxy' && getProgram(way) === undefined)
        console.log(`HAProxy is not here (${PACKAGES.haproxy})`)
      else all.push({ way, ...(await measure(server, way, join(folder, way))) })
    }
    if (all.length > 0) console.log(`\n${table(['requests to', ...COLUMNS, 'seconds'], all.map(toRow))}`)
    for (const { way, faults } of all) console.log(`${way}: ${JSON.stringify(faults)}`)
    if (options.throughput && getProgram('haproxy') !== undefined)
      console.log(`\n${await nodesThroughput(server, folder)}`)
  } finally {
    await server.end()
  }
  if (options.json) writeFileSync(options.json, `${JSON.stringify(all, null, 2)}\n`)
  if (!all.every(isComplete)) process.exitCode = 1
}

async function measure(server: PostgresServer, way: string, folder: string): Promise<Omit<Measured, 'way'>> {
  await using ends = new AsyncDisposableStack()
  const teardown = (end: () => unknown) => ends.defer(async () => void (await end()))
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
      ...{ balancer: way === 'in-turn' ? 'in turn' : 'haproxy', db, calls: CALLS, folder },
      faults: async ({ nodes }) => {
        faults = await faultsFor(Number(options.seconds), Number(options.seed), { nodes, links, server })
      },
    },
  )
  return { ...figures, faults }
}

function isComplete({ sessions, finished, lost, untrained, twice, listed }: NodesFigures): boolean {
  return finished === sessions && listed === sessions && lost + untrained + twice === 0
}

function toRow(measured: Measured): string[] {
  const counts = COLUMNS.map((name) => measured[name].toLocaleString('en-US'))
  return [measured.way, ...counts, measured.seconds.toFixed(1)]
}
