/** A group of samples read as rows and as one forest: bytes, and CPU time of the proxy. */
import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { MessageTree } from '../../../src/protocol/canonical/conversation.ts'
import { PromptIds } from '../../../src/protocol/token-ids/prompt-ids.ts'
import type { TurnStore } from '../../../src/proxy/store/port/turn-store.ts'
import { openSqliteStore } from '../../../src/proxy/store/sqlite/open.ts'
import { Children } from '../parts/children.ts'
import { getCpuSeconds } from '../parts/proc-stat.ts'
import { formatFigure, renderTable } from '../parts/table.ts'
import { Targets } from '../parts/targets.ts'
import type { Row } from './row.ts'

const SAMPLES = 8
const TIMES = { full: 5, quick: 1 } as const
const TASK_TOKENS = 2_000
const VOCABULARY = 150_000

interface Trace {
  system: number
  tools: number
  main: [tokensIn: number, tokensOut: number][]
}

export const forest: Row = async ({ engineUrl, folder, quick }) => {
  const db = join(folder, 'forest.db')
  const path = join(import.meta.dirname, '../data/claude-code.json')
  const traces: Trace[] = JSON.parse(readFileSync(path, 'utf8')).sessions
  const store = await openSqliteStore({ path: db, durability: 'process' })
  const shapes = traces.filter(({ main }) => main.length >= (quick ? 1 : 50)).slice(0, SAMPLES)
  for (const [number, trace] of shapes.entries())
    await record(store, number, trace, quick ? 3 : trace.main.length)
  await store.close()
  await using children = new Children()
  const proxy = await new Targets(children, engineUrl).startLocal({ db })
  const measure = async (paths: readonly string[]) => {
    const times = quick ? TIMES.quick : TIMES.full
    const readAll = async () => {
      let bytes = 0
      for (const path of paths) bytes += (await (await fetch(proxy.url + path)).arrayBuffer()).byteLength
      return bytes
    }
    // The first read compiles code.
    const bytes = await readAll()
    const before = getCpuSeconds(proxy.pid)
    for (let time = 0; time < times; time += 1) await readAll()
    return { bytes, cpuMs: ((getCpuSeconds(proxy.pid) - before) * 1000) / times }
  }
  const rowsCost = await measure(shapes.map((_, number) => `/sessions/s${number}/trajectories`))
  const forestCost = await measure(['/forest?metadata.task=1'])
  const createRow = (way: string, { bytes, cpuMs }: typeof rowsCost) => [
    way,
    formatFigure(bytes / 1e6),
    formatFigure(cpuMs),
  ]
  return {
    row: 'forest',
    report: `### A group of ${SAMPLES} samples\n\n${renderTable(
      ['read as', 'MB', 'CPU ms'],
      [createRow('rows', rowsCost), createRow('forest', forestCost)],
    )}`,
    aims: [
      {
        what: 'bytes of a forest against those of its rows',
        wanted: 'fewer',
        measured: `${formatFigure(forestCost.bytes / rowsCost.bytes)} times`,
        met: forestCost.bytes < rowsCost.bytes,
      },
    ],
    figures: { rows: rowsCost, forest: forestCost },
  }
}

/** Records a sample. Samples share system prompt, tools and task; a prompt that gets shorter is a compaction. */
async function record(store: TurnStore, sample: number, trace: Trace, turns: number): Promise<void> {
  const sessionId = `s${sample}`
  const start = { createdAtMs: Date.now(), ttlMs: null, samplingParams: {}, trustAgent: false }
  await store.createSession({ ...start, sessionId, metadata: { task: 1 } })
  let lastId = (sample + 1) * 7_919
  const createIds = (length: number) =>
    Int32Array.from({ length }, () => (lastId = (Math.imul(lastId, 48_271) >>> 0) % VOCABULARY))
  const sharedIds = Int32Array.from({ length: trace.system + trace.tools }, (_, index) => index % VOCABULARY)
  const task = Int32Array.from({ length: TASK_TOKENS }, (_, index) => index + 1)
  const lastMessage = new MessageTree().addMessageTexts(['{"role":"user","content":"the task"}'])
  let prompt = new PromptIds(sharedIds).createContinuation(task)
  for (const [index, [tokensIn, tokensOut]] of trace.main.slice(0, turns).entries()) {
    const turnId = `${sessionId}-${index}`
    const turn = { turnId, sessionId, index, dialect: 'messages', startedAtMs: Date.now(), lastMessage }
    await store.openTurn({ ...turn, tools: null, params: '{"model":"m"}', promptPieces: [], retryCount: 0 })
    const completionTokenIds = createIds(tokensOut)
    await store.closeTurn({
      turnId,
      sessionId,
      status: 'completed',
      endedAtMs: Date.now(),
      firstTokenAtMs: null,
      model: 'm',
      engine: 'e',
      completionText: 'text',
      reasoning: null,
      toolCalls: '[]',
      finishReason: 'stop',
      stopReason: null,
      promptTokenIds: prompt,
      completionTokenIds: completionTokenIds.slice(),
      completionLogprobs: Float64Array.from(completionTokenIds, (id) => -id / VOCABULARY),
      exact: true,
      inexactReason: null,
      weightVersionStart: '1',
      weightVersionEnd: '1',
      usage: null,
      annotations: '{}',
      error: null,
    })
    const [following = 0] = trace.main[index + 1] ?? []
    const grown = following - tokensIn - tokensOut
    prompt =
      grown > 0
        ? prompt.createContinuation(completionTokenIds, createIds(grown))
        : new PromptIds(sharedIds).createContinuation(createIds(Math.max(1, following - sharedIds.length)))
  }
}
