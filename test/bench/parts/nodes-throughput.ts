/** Calls a second that 1, 2 and 4 nodes record behind HAProxy, in rounds that take turns, on one machine that they share. */
import { mkdirSync } from 'node:fs'
import { join } from 'node:path'
import { startBalancer } from '../../helpers/balancer.ts'
import type { PostgresServer } from '../../helpers/postgres.ts'
import { type Child, Children } from './children.ts'
import { LoadGenerator } from './load.ts'
import type { LoadResult } from './load-job.ts'
import { cpuSeconds } from './proc-stat.ts'
import { startEngine } from './start-engine.ts'
import { quantile } from './statistics.ts'
import { figure, table } from './table.ts'

const COUNTS = [1, 2, 4]
const ROUNDS = 3
const LAUNCHER = join(import.meta.dirname, '../../../bin/llm-proxy')
const LOAD = {
  ...{ bodyBytes: 1_000, growthBytes: 500, stream: false, maxTokens: 32, concurrency: 32 },
  ...{ callsPerSession: 20, warmUpMs: 0 },
}
const ROUND_MS = 3_000
const WARM_UP_MS = 1_500

interface Measured {
  count: number
  results: LoadResult[]
  /** Of all nodes together, per call. */
  cpuMs: number[]
}

interface Cluster extends Measured {
  nodes: Child[]
  url: string
}

/** @param folder for configurations @returns a table in Markdown */
export async function nodesThroughput(server: PostgresServer, folder: string): Promise<string> {
  await using ends = new AsyncDisposableStack()
  await using children = new Children()
  const teardown = (end: () => unknown) => ends.defer(async () => void (await end()))
  const engine = await startEngine(children)
  const load = await LoadGenerator.start(children)
  const clusters: Cluster[] = []
  for (const count of COUNTS) {
    const own = join(folder, `throughput-${count}`)
    mkdirSync(own, { recursive: true })
    const db = await server.newDatabase()
    const nodes: Child[] = []
    for (let number = 1; number <= count; number += 1)
      nodes.push(await startNode(children, engine.url, `node ${number} of ${count}`, db))
    const hosts = nodes.map(({ url }) => new URL(url).host)
    const url = await startBalancer({ teardown }, 'haproxy', hosts, own)
    clusters.push({ count, nodes, url, results: [], cpuMs: [] })
  }
  for (const { url } of clusters) await load.run({ ...LOAD, url: agentsUrl(url), durationMs: WARM_UP_MS })
  for (let round = 0; round < ROUNDS; round += 1) for (const each of clusters) await measure(load, each)
  return report(clusters)
}

function startNode(children: Children, engineUrl: string, name: string, db: string): Promise<Child> {
  const engine = ['--mode', 'local', '--engine-url', engineUrl, '--engine-kind', 'vllm']
  const own = '--port 0 --log-level error'.split(' ')
  return children.start({ name, args: [LAUNCHER, 'serve', ...engine, ...own, '--db', db] })
}

async function measure(load: LoadGenerator, { nodes, url, results, cpuMs }: Cluster): Promise<void> {
  const cpu = () => nodes.reduce((sum, { pid }) => sum + cpuSeconds(pid), 0)
  const before = cpu()
  const result = await load.run({ ...LOAD, url: agentsUrl(url), durationMs: ROUND_MS })
  results.push(result)
  cpuMs.push(((cpu() - before) * 1_000) / result.calls)
}

function agentsUrl(url: string): string {
  return `${url}/{session}/v1/chat/completions`
}

function report(all: readonly Measured[]): string {
  const middle = (values: readonly number[]) => figure(quantile([...values], 0.5))
  const rows = all.map(({ count, results, cpuMs }) => [
    `${count}`,
    middle(results.map(({ callsPerSecond }) => callsPerSecond)),
    middle(results.map(({ p50Ms }) => p50Ms)),
    middle(results.map(({ p99Ms }) => p99Ms)),
    middle(cpuMs),
  ])
  return table(['nodes', 'calls/s', 'p50 ms', 'p99 ms', 'CPU ms/call, all nodes'], rows)
}
