/**
 * What counting costs: the same calls through the ports with and without the metrics, in this process, against the CPU
 * time that the proxy takes of a call. Both in one run, so that the share says something on a busy machine too.
 */
import { join } from 'node:path'
import type { GenerationEvent } from '../../../src/protocol/canonical/events.ts'
import type { GenerationRequest } from '../../../src/protocol/canonical/request.ts'
import { PromptIds } from '../../../src/protocol/token-ids/prompt-ids.ts'
import type { Backend } from '../../../src/proxy/engines/port/backend.ts'
import { Metrics } from '../../../src/proxy/metrics/metrics.ts'
import type { OpenTurn, TurnOutcome, TurnStore } from '../../../src/proxy/store/port/turn-store.ts'
import { Children } from '../parts/children.ts'
import { table } from '../parts/table.ts'
import { Targets } from '../parts/targets.ts'
import type { Bench, Row } from './row.ts'

interface Shape {
  name: string
  stream: boolean
  /** Pieces that its answer comes in, and tokens. */
  pieces: number
  maxTokens: number
}

const SHAPES: readonly Shape[] = [
  { name: '1 KB, 32 tokens, whole', stream: false, pieces: 1, maxTokens: 32 },
  { name: 'stream of 200 chunks', stream: true, pieces: 200, maxTokens: 200 },
]
const WANTED = 0.01
const CONCURRENCY = 16

const FULL = { rounds: 7, pieces: 400_000, durationMs: 5_000, warmUpMs: 2_000 }
const QUICK = { rounds: 1, pieces: 4_000, durationMs: 250, warmUpMs: 50 }

export const metrics: Row = async (bench) => {
  await using children = new Children()
  const db = join(bench.folder, 'metrics.db')
  const target = await new Targets(children, bench.engineUrl).start('local', { db })
  const figures = []
  for (const shape of SHAPES) {
    const call = (await cpuOfCalls(bench, { url: target.url, watchPid: target.pid! }, shape)) * 1_000
    const counting = await costOfCounting(shape, bench.quick ? QUICK : FULL)
    figures.push({ shape: shape.name, callUs: call, countingUs: counting, share: counting / call })
  }
  const rows = figures.map(({ shape, callUs, countingUs, share }) => [
    shape,
    callUs.toFixed(0),
    countingUs.toFixed(2),
    percentOf(share),
  ])
  const head = ['call', 'CPU µs of the proxy', 'of it counting, µs', 'share']
  return {
    row: 'metrics',
    report: `### What the metrics cost\n\n${table(head, rows)}`,
    aims: figures.map(({ shape, share }) => ({
      what: `share of the metrics in the CPU time of a call (${shape})`,
      wanted: 'under 1 %',
      measured: percentOf(share),
      met: share < WANTED,
    })),
    figures,
  }
}

const percentOf = (share: number) => `${(share * 100).toFixed(2)} %`

/** @returns milliseconds a call */
async function cpuOfCalls(
  { load, quick }: Bench,
  proxy: { url: string; watchPid: number },
  { stream, maxTokens }: Shape,
): Promise<number> {
  const { durationMs, warmUpMs } = quick ? QUICK : FULL
  const job = { ...proxy, bodyBytes: 1_000, growthBytes: 0, stream, maxTokens, callsPerSession: 20 }
  const { cpuMsPerCall } = await load.run({ ...job, concurrency: CONCURRENCY, durationMs, warmUpMs })
  return cpuMsPerCall
}

/** Median over rounds that take turns with and without. @returns microseconds a call */
async function costOfCounting(shape: Shape, plan: { rounds: number; pieces: number }): Promise<number> {
  using counted = new Metrics()
  const plain = ports(shape)
  const watched = { store: counted.watchStore(plain.store), backend: counted.watchBackend(plain.backend) }
  const calls = Math.ceil(plan.pieces / (shape.pieces + 10))
  const once = async (with_: typeof plain, told: Metrics | undefined) => {
    const before = process.cpuUsage()
    for (let call = 0; call < calls; call += 1) await oneCall(with_, shape, told)
    const { user, system } = process.cpuUsage(before)
    return (user + system) / calls
  }
  await once(plain, undefined)
  await once(watched, counted)
  const differences: number[] = []
  for (let round = 0; round < plan.rounds; round += 1) {
    const without = await once(plain, undefined)
    differences.push((await once(watched, counted)) - without)
  }
  return differences.sort((a, b) => a - b)[differences.length >> 1]!
}

/** A store and a backend that do nothing, as fast as that can be done. */
function ports({ pieces }: Shape) {
  const done = Promise.resolve()
  const store = { openTurn: () => done, closeTurn: () => done } as unknown as TurnStore
  const piece: readonly GenerationEvent[] = [{ type: 'delta', content: 'a' }]
  const backend = {
    generate: async function* () {
      for (let sent = 0; sent < pieces; sent += 1) yield piece
    },
  } as unknown as Backend
  return { store, backend }
}

const outcome = {
  status: 'completed',
  finishReason: 'stop',
  promptTokenIds: PromptIds.from(new Int32Array(300)),
  completionTokenIds: new Int32Array(200),
  inexactReason: null,
  weightVersionStart: 'step-7',
  weightVersionEnd: 'step-7',
  usage: null,
  annotations: '{"line":{"told":"main"},"prompt":{"reason":"extended","from":"a-turn","reused_tokens":200}}',
  error: null,
} as unknown as TurnOutcome

let turns = 0

/** What the proxy tells the metrics of one call: its turn, its slot, its pieces, its commit. */
async function oneCall(
  { store, backend }: ReturnType<typeof ports>,
  { stream }: Shape,
  told: Metrics | undefined,
): Promise<void> {
  turns += 1
  const turnId = `turn-${turns}`
  await store.openTurn({ turnId, dialect: 'chat', retryCount: 0 } as OpenTurn)
  told?.dispatch.waited(0)
  const request = { requestId: turnId, stream } as GenerationRequest
  for await (const _ of backend.generate(request, NEVER));
  await store.closeTurn({ ...outcome, turnId })
  told?.committed(1, 0.4)
}

const NEVER = new AbortController().signal
