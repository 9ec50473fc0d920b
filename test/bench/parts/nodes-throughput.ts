/**
 * The cost of a request with 1, 2 and 4 nodes behind HAProxy, in alternating rounds, on one machine that they share.
 */
import { mkdirSync } from 'node:fs'
import { join } from 'node:path'
import { startBalancer } from '../../helpers/balancer.ts'
import { DatabaseLink } from '../../helpers/database-link.ts'
import type { PostgresServer } from '../../helpers/postgres.ts'
import { type Child, Children } from './children.ts'
import { LoadGenerator } from './load.ts'
import type { LoadResult } from './load-job.ts'
import { cpuSeconds } from './proc-stat.ts'
import { startEngine } from './start-engine.ts'
import { quantile } from './statistics.ts'
import { figure, table } from './table.ts'

/** The compared clusters. With one node, both balancing methods are the same. */
const CLUSTERS = [
  [1, 'hashed'],
  [2, 'hashed'],
  [2, 'round robin'],
  [4, 'hashed'],
  [4, 'round robin'],
] as const
type Way = (typeof CLUSTERS)[number][1]

const ROUNDS = 3
const LAUNCHER = join(import.meta.dirname, '../../../bin/llm-proxy')
const LOAD = {
  ...{ bodyBytes: 1_000, growthBytes: 500, stream: false, maxTokens: 32, concurrency: 32 },
  ...{ callsPerSession: 20, warmUpMs: 0 },
}
/** The new part of a request is the same; the old part is forty times as large. */
const LONG = { ...LOAD, bodyBytes: 40_000 }
const ROUND_MS = 3_000
const WARM_UP_MS = 1_500

interface Round {
  result: LoadResult
  /**
   * The CPU time of all nodes together, the groups of changes that they committed, and what they read of the database:
   * per request.
   */
  cpuMs: number
  commits: number
  readBytes: number
}

interface Cluster {
  count: number
  way: Way
  nodes: Child[]
  url: string
  link: DatabaseLink
  database: string
  short: Round[]
  long: Round[]
}

/**
 * Measures the throughput.
 * @param folder for configurations
 * @returns a table in Markdown
 */
export async function nodesThroughput(server: PostgresServer, folder: string): Promise<string> {
  await using ends = new AsyncDisposableStack()
  await using children = new Children()
  const teardown = (end: () => unknown) => ends.defer(async () => void (await end()))
  const engine = await startEngine(children)
  const load = await LoadGenerator.start(children)
  const clusters: Cluster[] = []
  for (const [count, way] of CLUSTERS) {
    const own = join(folder, `throughput-${count}-${way.replace(' ', '-')}`)
    mkdirSync(own, { recursive: true })
    const database = new URL(await server.newDatabase()).pathname.slice(1)
    const link = new DatabaseLink(server.port)
    const db = server.url(database, await link.open())
    teardown(() => link.close())
    const nodes: Child[] = []
    for (let number = 1; number <= count; number += 1)
      nodes.push(await startNode(children, engine.url, `node ${number} of ${count}`, db))
    const hosts = nodes.map(({ url }) => new URL(url).host)
    const url = await startBalancer({ teardown }, 'haproxy', hosts, own, createConfiguration(way))
    clusters.push({ count, way, nodes, url, link, database, short: [], long: [] })
  }
  for (const { url } of clusters) await load.run({ ...LOAD, url: agentsUrl(url), durationMs: WARM_UP_MS })
  for (let round = 0; round < ROUNDS; round += 1) {
    for (const each of clusters) each.short.push(await measure(server, load, each, LOAD))
    for (const each of clusters) each.long.push(await measure(server, load, each, LONG))
  }
  return report(clusters)
}

function createConfiguration(way: Way): ((text: string) => string) | undefined {
  if (way === 'hashed') return undefined
  return (text) => text.replace(/balance hash .*\n *hash-type consistent/, 'balance roundrobin')
}

function startNode(children: Children, engineUrl: string, name: string, db: string): Promise<Child> {
  const engine = ['--mode', 'local', '--engine-url', engineUrl, '--engine-kind', 'vllm']
  const own = '--port 0 --log-level error'.split(' ')
  return children.start({ name, args: [LAUNCHER, 'serve', ...engine, ...own, '--db', db] })
}

async function measure(
  server: PostgresServer,
  load: LoadGenerator,
  { nodes, url, link, database }: Cluster,
  job: typeof LOAD,
): Promise<Round> {
  const cpu = () => nodes.reduce((sum, { pid }) => sum + cpuSeconds(pid), 0)
  const groups = async () => {
    const sql = 'SELECT sum(last_group)::int AS groups FROM llm_proxy.proxies'
    return (await server.query(sql, database))[0]!.groups as number
  }
  const [cpuBefore, groupsBefore, answeredBefore] = [cpu(), await groups(), link.answered]
  const result = await load.run({ ...job, url: agentsUrl(url), durationMs: ROUND_MS })
  const perCall = (sum: number) => sum / result.calls
  return {
    result,
    cpuMs: perCall((cpu() - cpuBefore) * 1_000),
    commits: perCall((await groups()) - groupsBefore),
    readBytes: perCall(link.answered - answeredBefore),
  }
}

function agentsUrl(url: string): string {
  return `${url}/{session}/v1/chat/completions`
}

const HEAD = [
  ...[
    'nodes',
    'requests to',
    'requests/s',
    'p50 ms',
    'p99 ms',
    'CPU ms/request, all nodes',
    'commits/request',
  ],
  ...['bytes read/request', 'CPU ms, 40 KB', 'bytes read, 40 KB'],
]

function report(all: readonly Cluster[]): string {
  const middle = (rounds: readonly Round[], of: (round: Round) => number) =>
    figure(quantile(rounds.map(of), 0.5))
  const rows = all.map(({ count, way, short, long }) => [
    `${count}`,
    count === 1 ? '' : way,
    middle(short, ({ result }) => result.callsPerSecond),
    middle(short, ({ result }) => result.p50Ms),
    middle(short, ({ result }) => result.p99Ms),
    middle(short, ({ cpuMs }) => cpuMs),
    middle(short, ({ commits }) => commits),
    middle(short, ({ readBytes }) => readBytes),
    middle(long, ({ cpuMs }) => cpuMs),
    middle(long, ({ readBytes }) => readBytes),
  ])
  return table(HEAD, rows)
}
