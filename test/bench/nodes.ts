/**
 * npm run nodes -- [--sessions 400] [--calls 6] [--ways haproxy,in-turn] [--no-throughput] [--json FILE]
 *
 * Three nodes on one PostgreSQL database, behind HAProxy and without, while nodes are killed and come back, one is stopped for
 * three leases, and a worker leaves. Exits with 1 when an answer was lost, or trains twice or never, or a rollout failed.
 * Then, behind HAProxy, the calls a second that 1, 2 and 4 nodes record.
 */
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { parseArgs } from 'node:util'
import { PACKAGES, programOf } from '../helpers/balancer.ts'
import { type NodesFigures, type NodesRun, runNodesKilled } from '../helpers/nodes-killed.ts'
import { PostgresServer } from '../helpers/postgres.ts'
import { describeMachine, machineLine } from './parts/machine.ts'
import { nodesThroughput } from './parts/nodes-throughput.ts'
import { table } from './parts/table.ts'

const { values: options } = parseArgs({
  options: {
    sessions: { type: 'string', default: '400' },
    calls: { type: 'string', default: '6' },
    ways: { type: 'string', default: 'haproxy,in-turn' },
    throughput: { type: 'boolean', default: true },
    json: { type: 'string' },
  },
  allowNegative: true,
})

const KILLS = 8
const HEAD = [
  'calls go',
  'rollouts',
  'finished',
  'answers read',
  'retries',
  'lost',
  'not trained',
  'trained twice',
  'seconds',
]

await main()

async function main(): Promise<void> {
  const folder = mkdtempSync(join(tmpdir(), 'llm-proxy-nodes-'))
  process.once('exit', () => rmSync(folder, { recursive: true, force: true }))
  console.log(machineLine(describeMachine(folder)))
  const server = await PostgresServer.start({ fsync: 'on' })
  const all: (NodesFigures & { way: string })[] = []
  try {
    for (const way of options.ways.split(',').filter(Boolean)) {
      if (way === 'haproxy' && programOf(way) === undefined)
        console.log(`HAProxy is not here (${PACKAGES.haproxy})`)
      else all.push({ way, ...(await measure(server, way, join(folder, way))) })
    }
    if (all.length > 0) console.log(`\n${table(HEAD, all.map(rowOf))}`)
    if (options.throughput && programOf('haproxy') !== undefined)
      console.log(`\n${await nodesThroughput(server, folder)}`)
  } finally {
    await server.end()
  }
  if (options.json) writeFileSync(options.json, `${JSON.stringify(all, null, 2)}\n`)
  if (!all.every(isWhole)) process.exitCode = 1
}

async function measure(server: PostgresServer, way: string, folder: string): Promise<NodesFigures> {
  await using ends = new AsyncDisposableStack()
  const teardown = (end: () => unknown) => ends.defer(async () => void (await end()))
  const [sessions, calls] = [Number(options.sessions), Number(options.calls)]
  const balancer = (way === 'in-turn' ? 'in turn' : way) as NodesRun['balancer']
  const db = await server.newDatabase()
  return await runNodesKilled(
    { teardown },
    { balancer, db, sessions, calls, kills: KILLS, stops: true, folder },
  )
}

function isWhole({ finished, lost, untrained, twice, listed }: NodesFigures): boolean {
  const sessions = Number(options.sessions)
  return finished === sessions && listed === sessions && lost + untrained + twice === 0
}

function rowOf({
  way,
  finished,
  read,
  retries,
  lost,
  untrained,
  twice,
  seconds,
}: NodesFigures & { way: string }): string[] {
  const counts = [Number(options.sessions), finished, read, retries, lost, untrained, twice]
  return [way, ...counts.map((count) => count.toLocaleString('en-US')), seconds.toFixed(1)]
}
