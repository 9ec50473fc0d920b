/**
 * One agent that sends many concurrent requests with very many new messages: measures how long another agent's short
 * request waits.
 */
import { once } from 'node:events'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { Worker } from 'node:worker_threads'
import { Children } from '../parts/children.ts'
import { COMPLETION_TOKENS } from '../parts/replay-job.ts'
import { type HeapJob, ShortRequests } from '../parts/short-requests.ts'
import { startEngine } from '../parts/start-engine.ts'
import { quantile } from '../parts/statistics.ts'
import { formatFigure, renderTable } from '../parts/table.ts'
import { Targets } from '../parts/targets.ts'
import { TOKEN_MODEL } from '../parts/token-model.ts'
import type { Row } from './row.ts'

const REQUESTS = { full: 20, quick: 2 }
/**
 * In chat mode, the largest accepted request and one that is rejected for the number of its values; and one in token
 * mode, where prompts are rendered.
 */
const HEAPS = {
  full: [
    { mode: 'chat', messages: 33_000 },
    { mode: 'chat', messages: 80_000 },
    { mode: 'token', messages: 10_000 },
  ],
  quick: [
    { mode: 'chat', messages: 2_000 },
    { mode: 'token', messages: 2_000 },
  ],
}
const ALONE_MS = { full: 3_000, quick: 200 }
/** The limit of the aim, for a short request. */
const MAX_SHORT_MS = 250

interface Figures {
  mode: string
  messages: number
  status: string
  alone: number[]
  beside: number[]
}

export const heap: Row = async ({ folder, quick, cpuProfileFolder }) => {
  const size = quick ? 'quick' : 'full'
  const figures: Figures[] = []
  for (const { mode, messages } of HEAPS[size]) {
    await using children = new Children()
    const tokenizer = mode === 'token' ? TOKEN_MODEL : undefined
    const engine = await startEngine(children, { tokenizer })
    const db = join(folder, `heap-${mode}-${messages}.db`)
    const args = tokenizer === undefined ? [] : ['--tokenizer', tokenizer, '--context-length', '131072']
    const { url } = await new Targets(children, engine.url).startLocal({ db, cpuProfileFolder, args })
    // The fields of the fake engine's responses in token mode.
    const fields = mode === 'token' ? { stream: true, max_tokens: COMPLETION_TOKENS } : {}
    const short = new ShortRequests({ url, fields })
    await sleep(ALONE_MS[size])
    const alone = short.takeDurations()
    const statuses = await sendHeaps({ url, messages, requests: REQUESTS[size], fields })
    await short.stop()
    figures.push({ mode, messages, status: statuses.join(), alone, beside: short.takeDurations() })
  }
  const title = `${REQUESTS[size]} requests at once, each of a heap of new messages`
  const aims = figures.map(({ mode, messages, beside }) => ({
    ...{ what: `a short request beside those of ${messages} messages, ${mode} mode` },
    ...{ wanted: `at most ${MAX_SHORT_MS} ms`, measured: `${formatFigure(Math.max(...beside))} ms` },
    met: Math.max(...beside) <= MAX_SHORT_MS,
  }))
  return { row: 'heap', report: `### ${title}\n\n${formatReport(figures)}`, aims, figures }
}

async function sendHeaps(job: HeapJob): Promise<number[]> {
  const worker = new Worker(join(import.meta.dirname, '../processes/heap-sender.ts'), { workerData: job })
  const [statuses] = await once(worker, 'message')
  await worker.terminate()
  return statuses
}

function formatReport(figures: readonly Figures[]): string {
  const head = [
    'mode',
    'messages',
    'status',
    'short requests alone, p50 ms',
    'beside: requests',
    'p50 ms',
    'longest ms',
  ]
  const rows = figures.map(({ mode, messages, status, alone, beside }) => [
    ...[
      mode,
      messages.toLocaleString('en'),
      status,
      formatFigure(quantile(alone, 0.5)),
      String(beside.length),
    ],
    ...[formatFigure(quantile(beside, 0.5)), formatFigure(Math.max(...beside))],
  ])
  return renderTable(head, rows)
}
