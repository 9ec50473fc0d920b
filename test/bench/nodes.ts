/**
 * npm run nodes -- [--sessions 400] [--calls 4] [--balancers haproxy,envoy] [--no-throughput] [--json FILE]
 *
 * Four nodes behind real load balancers while one of them is killed and comes back, and one worker leaves. Exits with 1
 * when an answer was lost, a session misplaced, or a list not whole. Envoy's program is named by ENVOY.
 * Then, behind HAProxy, the calls a second that 1, 2 and 4 nodes record.
 */
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { parseArgs } from 'node:util'
import { type BalancerKind, PACKAGES, programOf } from '../helpers/balancer.ts'
import { type NodesFigures, runNodesKilled } from '../helpers/nodes-killed.ts'
import { describeMachine, machineLine } from './parts/machine.ts'
import { nodesThroughput } from './parts/nodes-throughput.ts'
import { table } from './parts/table.ts'

const { values: options } = parseArgs({
  options: {
    sessions: { type: 'string', default: '400' },
    calls: { type: 'string', default: '4' },
    balancers: { type: 'string', default: 'haproxy,envoy' },
    throughput: { type: 'boolean', default: true },
    json: { type: 'string' },
  },
  allowNegative: true,
})

const HEAD = [
  'balancer',
  'rollouts',
  'finished',
  'answers read',
  'retries',
  'lost',
  'not trained',
  'on a wrong node',
  'listed',
  'seconds',
]

await main()

async function main(): Promise<void> {
  const folder = mkdtempSync(join(tmpdir(), 'llm-proxy-nodes-'))
  process.once('exit', () => rmSync(folder, { recursive: true, force: true }))
  console.log(machineLine(describeMachine(folder)))
  const all: (NodesFigures & { balancer: BalancerKind })[] = []
  for (const balancer of options.balancers.split(',').filter(Boolean) as BalancerKind[]) {
    if (programOf(balancer) === undefined) console.log(`${balancer} is not here (${PACKAGES[balancer]})`)
    else all.push({ balancer, ...(await measure(balancer, join(folder, balancer))) })
  }
  if (all.length > 0) console.log(`\n${table(HEAD, all.map(rowOf))}`)
  if (options.throughput && programOf('haproxy') !== undefined)
    console.log(`\n${await nodesThroughput(folder)}`)
  if (options.json) writeFileSync(options.json, `${JSON.stringify(all, null, 2)}\n`)
  if (!all.every(isWhole)) process.exitCode = 1
}

async function measure(balancer: BalancerKind, folder: string): Promise<NodesFigures> {
  await using ends = new AsyncDisposableStack()
  const teardown = (end: () => unknown) => ends.defer(async () => void (await end()))
  const [sessions, calls] = [Number(options.sessions), Number(options.calls)]
  return await runNodesKilled({ teardown }, { balancer, sessions, calls, folder })
}

function isWhole({ finished, lost, untrained, misplaced, listed, listIsPartial }: NodesFigures): boolean {
  const sessions = Number(options.sessions)
  const isComplete = finished === sessions && listed === sessions && !listIsPartial
  return isComplete && lost + untrained + misplaced === 0
}

function rowOf(run: NodesFigures & { balancer: BalancerKind }): string[] {
  const { balancer, finished, read, retries, lost, untrained, misplaced, listed, seconds } = run
  const counts = [Number(options.sessions), finished, read, retries, lost, untrained, misplaced, listed]
  return [balancer, ...counts.map((count) => count.toLocaleString('en-US')), seconds.toFixed(1)]
}
