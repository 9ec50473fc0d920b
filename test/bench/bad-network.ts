/**
 * npm run bad-network -- [--rollouts 500] [--requests 50] [--at-once 64] [--clients openai,anthropic,responses]
 *                        [--retries answered,unknown,none] [--json FILE]
 *
 * Agents behind a network that loses a quarter of all attempts: with retries that the proxy serves from the original
 * attempt, with retries that are not declared to it, and with none. It measures the rollouts that finish, and the
 * cost for the engines. Exits with 1 if, with retries that the proxy serves, a rollout did not finish or the sampled
 * tokens are not those that are trained.
 */
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { parseArgs } from 'node:util'
import { CLIENTS, RETRIES, type Retries, readRecordedTotals, rollOut } from '../helpers/bad-network.ts'
import { startEngine } from '../helpers/engine.ts'
import { parseNames } from '../helpers/parse-names.ts'
import { startProxy } from '../helpers/proxy.ts'
import { describeMachine, formatMachine } from './parts/machine.ts'
import { renderTable } from './parts/table.ts'
import { seededRandom } from './parts/text.ts'

const { values: options } = parseArgs({
  options: {
    rollouts: { type: 'string', default: '500' },
    requests: { type: 'string', default: '50' },
    'at-once': { type: 'string', default: '64' },
    clients: { type: 'string', default: Object.keys(CLIENTS).join() },
    retries: { type: 'string', default: RETRIES.join() },
    json: { type: 'string' },
  },
})

const HEAD = [
  'client, retries',
  'rollouts',
  'finished',
  'requests read',
  'attempts lost',
  'redeliveries',
  'completed turns',
  'sampled per request read',
  'tokens trained twice',
  'minutes',
]

interface Figures {
  client: string
  retries: Retries
  rollouts: number
  finished: number
  read: number
  lostAttempts: number
  redeliveries: number
  turns: number
  completed: number
  sampledTokens: number
  trainedTokens: number
  minutes: number
}

await main()

async function main(): Promise<void> {
  const policies = parseNames(options.retries, RETRIES)
  const clients = parseNames(options.clients, Object.keys(CLIENTS))
  const folder = mkdtempSync(join(tmpdir(), 'llm-proxy-bad-network-'))
  process.once('exit', () => rmSync(folder, { recursive: true, force: true }))
  console.log(formatMachine(describeMachine(folder)))
  const all: Figures[] = []
  for (const retries of policies)
    for (const client of clients) {
      const figures = await measure(client, retries, join(folder, `${client}-${retries}.db`))
      all.push(figures)
      console.log(JSON.stringify(figures))
    }
  console.log(`\n${renderTable(HEAD, all.map(toRow))}`)
  if (options.json) writeFileSync(options.json, `${JSON.stringify(all, null, 2)}\n`)
  if (!all.every(isCorrect)) process.exitCode = 1
}

async function measure(client: string, retries: Retries, db: string): Promise<Figures> {
  await using stack = new AsyncDisposableStack()
  const teardown = (end: () => unknown) => stack.defer(async () => void (await end()))
  const [rollouts, requests] = [Number(options.rollouts), Number(options.requests)]
  const engine = await startEngine({ teardown })
  const proxy = await startProxy({ teardown }, { engineUrls: [engine.url], db })
  const startedAtMs = performance.now()
  const sum: Figures = {
    ...{ client, retries, rollouts, finished: 0, read: 0, lostAttempts: 0, redeliveries: 0 },
    ...{ turns: 0, completed: 0, sampledTokens: 0, trainedTokens: 0, minutes: 0 },
  }
  const seeds = Array.from({ length: rollouts }, (_, seed) => seed)
  const agent = async () => {
    for (let seed = seeds.shift(); seed !== undefined; seed = seeds.shift()) {
      const sessionId = `${client}-${seed}`
      const { read, lostAttempts, error } = await rollOut(proxy, {
        ...{ sessionId, client, requests, retries },
        draw: seededRandom(seed),
      })
      if (error !== undefined && retries === 'answered') console.error(`${sessionId} failed:`, error)
      await proxy.post(`/sessions/${sessionId}/complete`)
      const record = await readRecordedTotals(proxy, sessionId)
      sum.finished += read === requests ? 1 : 0
      sum.read += read
      sum.lostAttempts += lostAttempts
      sum.redeliveries += record.redeliveries
      for (const name of ['turns', 'completed', 'sampledTokens', 'trainedTokens'] as const)
        sum[name] += record[name]
    }
  }
  await Promise.all(Array.from({ length: Number(options['at-once']) }, agent))
  sum.minutes = (performance.now() - startedAtMs) / 60_000
  return sum
}

/**
 * Returns whether the figures contain what the proxy guarantees. Rollouts whose retries it cannot recognize may end
 * early, and train tokens twice.
 */
function isCorrect({ retries, rollouts, finished, sampledTokens, trainedTokens }: Figures): boolean {
  if (sampledTokens === 0) return false
  return retries !== 'answered' || (finished === rollouts && trainedTokens === sampledTokens)
}

function toRow(each: Figures): string[] {
  const { client, retries, rollouts, finished, read, lostAttempts, redeliveries, turns, completed } = each
  const { sampledTokens, trainedTokens, minutes } = each
  return [
    `${client}, ${retries}`,
    count(rollouts),
    `${((100 * finished) / rollouts).toFixed(1)} %`,
    count(read),
    count(lostAttempts),
    count(redeliveries),
    count(completed),
    (turns / read).toFixed(3),
    count(Math.max(0, trainedTokens - sampledTokens)),
    minutes.toFixed(1),
  ]
}

function count(value: number): string {
  return value.toLocaleString('en-US')
}
