/**
 * The cost of a request with 1, 2 and 4 nodes behind HAProxy, in alternating rounds, on one machine that they share.
 */
import { mkdirSync } from 'node:fs'
import { join } from 'node:path'
import { startBalancer } from '../../helpers/balancer.ts'
import { DatabaseLink } from '../../helpers/database-link.ts'
import { LAUNCHER } from '../../helpers/llm-proxy.ts'
import type { PostgresServer } from '../../helpers/postgres.ts'
import { type Child, Children } from './children.ts'
import { LoadGenerator } from './load-generator.ts'
import type { LoadResult } from './load-job.ts'
import { getCpuSeconds } from './proc-stat.ts'
import { startEngine } from './start-engine.ts'
import { quantile } from './statistics.ts'
import { formatFigure, renderTable } from './table.ts'
import { getChatUrl } from './targets.ts'

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
const LOAD = {
  ...{ bodyBytes: 1_000, growthBytes: 500, stream: false, maxTokens: 32, concurrency: 32 },
  ...{ requestsPerSession: 20, warmUpMs: 0 },
}
/** The new part of a request is the same; the old part is forty times as large. */
const LONG = { ...LOAD, bodyBytes: 40_000 }
const ROUND_MS = 3_000
const WARM_UP_MS = 1_500

interface Round {
  result: LoadResult
  /**
   * Per request: the CPU time of all nodes, the groups of changes that they committed, and the bytes that they read from
   * the database.
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
export async function measureNodesThroughput(server: PostgresServer, folder: string): Promise<string> {
  await using stack = new AsyncDisposableStack()
  await using children = new Children()
  const teardown = (end: () => unknown) => stack.defer(async () => void (await end()))
  const engine = await startEngine(children)
  const load = await LoadGenerator.start(children)
  const clusters: Cluster[] = []
  for (const [count, way] of CLUSTERS) {
    const clusterFolder = join(folder, `throughput-${count}-${way.replace(' ', '-')}`)
    mkdirSync(clusterFolder, { recursive: true })
    const database = new URL(await server.newDatabase()).pathname.slice(1)
    const link = new DatabaseLink(server.port)
    const db = server.url(database, await link.open())
    teardown(() => link.close())
    const nodes: Child[] = []
    for (let number = 1; number <= count; number += 1)
      nodes.push(await startNode(children, engine.url, `node ${number} of ${count}`, db))
    const hosts = nodes.map(({ url }) => new URL(url).host)
    const url = await startBalancer({ teardown }, 'haproxy', hosts, clusterFolder, createConfiguration(way))
    clusters.push({ count, way, nodes, url, link, database, short: [], long: [] })
  }
  for (const { url } of clusters) await load.run({ ...LOAD, url: getChatUrl(url), durationMs: WARM_UP_MS })
  for (let round = 0; round < ROUNDS; round += 1) {
    for (const each of clusters) each.short.push(await measure(server, load, each, LOAD))
    for (const each of clusters) each.long.push(await measure(server, load, each, LONG))
  }
  return renderReport(clusters)
}

function createConfiguration(way: Way): ((text: string) => string) | undefined {
  if (way === 'hashed') return undefined
  return (text) => text.replace(/balance hash .*\n *hash-type consistent/, 'balance roundrobin')
}

function startNode(children: Children, engineUrl: string, name: string, db: string): Promise<Child> {
  const engine = ['--mode', 'local', '--engine-url', engineUrl, '--engine-kind', 'vllm']
  const options = '--port 0 --log-level error'.split(' ')
  return children.start({ name, args: [LAUNCHER, 'serve', ...engine, ...options, '--db', db] })
}

async function measure(
  server: PostgresServer,
  load: LoadGenerator,
  { nodes, url, link, database }: Cluster,
  job: typeof LOAD,
): Promise<Round> {
  const cpu = () => nodes.reduce((sum, { pid }) => sum + getCpuSeconds(pid), 0)
  const groups = async () => {
    const sql = 'SELECT sum(last_group)::int AS groups FROM llm_proxy.proxies'
    return (await server.query(sql, database))[0]!.groups as number
  }
  const [cpuBefore, groupsBefore, bytesBefore] = [cpu(), await groups(), link.responseBytes]
  const result = await load.run({ ...job, url: getChatUrl(url), durationMs: ROUND_MS })
  const perRequest = (sum: number) => sum / result.requests
  return {
    result,
    cpuMs: perRequest((cpu() - cpuBefore) * 1_000),
    commits: perRequest((await groups()) - groupsBefore),
    readBytes: perRequest(link.responseBytes - bytesBefore),
  }
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

function renderReport(all: readonly Cluster[]): string {
  const formatMedian = (rounds: readonly Round[], of: (round: Round) => number) =>
    formatFigure(quantile(rounds.map(of), 0.5))
  const rows = all.map(({ count, way, short, long }) => [
    `${count}`,
    count === 1 ? '' : way,
    formatMedian(short, ({ result }) => result.requestsPerSecond),
    formatMedian(short, ({ result }) => result.p50Ms),
    formatMedian(short, ({ result }) => result.p99Ms),
    formatMedian(short, ({ cpuMs }) => cpuMs),
    formatMedian(short, ({ commits }) => commits),
    formatMedian(short, ({ readBytes }) => readBytes),
    formatMedian(long, ({ cpuMs }) => cpuMs),
    formatMedian(long, ({ readBytes }) => readBytes),
  ])
  return renderTable(HEAD, rows)
}
