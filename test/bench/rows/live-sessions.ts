/** The memory of live sessions in the proxy, relative to their text and ids. */
import { join } from 'node:path'
import { Pool } from 'undici'
import { Children } from '../parts/children.ts'
import { GROWTH_TOKENS, REPLAY_DIALECTS, REPLAY_PATHS, type ReplayDialect } from '../parts/replay-job.ts'
import { ReplayedConversation, type Script } from '../parts/replayed-conversation.ts'
import { measureRetained, PROBE_ARGS, type RetainedBytes } from '../parts/retained-bytes.ts'
import { formatFigure, renderTable } from '../parts/table.ts'
import { Targets } from '../parts/targets.ts'
import type { Bench, Row } from './row.ts'

const FULL = { sessions: 12, promptTokens: 100_000 }
const QUICK = { sessions: 2, promptTokens: 25_000 }
/** Tokens of the first request of each session: system prompt, tools, and a task. */
const FIRST_TOKENS = 20_000
const SYSTEM_TOKENS = 2_800
const TOOL_TOKENS = 12_600
/** Enough memory that the proxy evicts nothing. */
const SESSION_MEMORY = '4GiB'
const ID_BYTES = 4
const KIB = 1024
const MAX_RATIO = 2

/** The figures of one session. */
interface Figures {
  dialect: ReplayDialect
  textBytes: number
  ids: number
  held: RetainedBytes
  /** The memory of the process for the session, relative to its text and 4 bytes for each id. */
  ratio: number
}

export const liveSessions: Row = async (bench) => {
  const all: Figures[] = []
  for (const dialect of REPLAY_DIALECTS) all.push(await measure(bench, dialect))
  return {
    row: 'live-sessions',
    report: `### Memory of a session that continues\n\n${formatReport(all)}`,
    aims: all.map(({ dialect, ratio }) => ({
      what: `memory of a session (${dialect}), of its text and 4 bytes for each id`,
      wanted: `at most ${MAX_RATIO} times`,
      measured: `${formatFigure(ratio)} times`,
      met: ratio <= MAX_RATIO,
    })),
    figures: all,
  }
}

/** Measures in a separate process, so that its memory contains nothing of another dialect. */
async function measure({ engineUrl, folder, quick }: Bench, dialect: ReplayDialect): Promise<Figures> {
  const { sessions, promptTokens } = quick ? QUICK : FULL
  await using children = new Children()
  const proxy = await new Targets(children, engineUrl).startLocal({
    db: join(folder, `live-sessions-${dialect}.db`),
    args: ['--session-memory', SESSION_MEMORY],
    nodeArgs: PROBE_ARGS,
  })
  await using stack = new AsyncDisposableStack()
  const pool = stack.adopt(new Pool(proxy.url, { connections: sessions, pipelining: 1 }), (pool) =>
    pool.destroy(),
  )
  const replay = (name: string, count: number) =>
    Promise.all(
      Array.from({ length: count }, (_, index) =>
        run(pool, dialect, `${name}-${index}`, promptTokens, index),
      ),
    )
  // Warm up: create what all sessions share.
  await replay('first', Math.ceil(sessions / 2))
  const before = await measureRetained(proxy)
  const bodies = await replay('live', sessions)
  const retained = computeGrowth(before, await measureRetained(proxy), sessions)
  const textBytes = bodies.reduce((sum, bytes) => sum + bytes, 0) / sessions
  const ratio = (retained.heapBytes + retained.externalBytes) / (textBytes + ID_BYTES * promptTokens)
  return { dialect, textBytes, ids: promptTokens, held: retained, ratio }
}

/**
 * Runs a session.
 * @returns the size of the last request in bytes
 */
async function run(
  pool: Pool,
  dialect: ReplayDialect,
  session: string,
  tokens: number,
  seed: number,
): Promise<number> {
  const count = Math.ceil((tokens - FIRST_TOKENS) / GROWTH_TOKENS) + 1
  const prompts = Array.from({ length: count }, (_, index) => FIRST_TOKENS + index * GROWTH_TOKENS)
  const script: Script = { systemTokens: SYSTEM_TOKENS, toolTokens: TOOL_TOKENS, prompts }
  const conversation = new ReplayedConversation(dialect, script, 0, seed * 1_000)
  let bytes = 0
  while (!conversation.isOver) {
    const { body } = conversation.nextRequest()
    bytes = body.length
    await post(pool, `/${session}${REPLAY_PATHS[dialect]}`, body)
  }
  return bytes
}

/**
 * Sends a request.
 * @throws Error for any status other than 200
 */
async function post(pool: Pool, path: string, body: Buffer): Promise<void> {
  const headers = { 'content-type': 'application/json' }
  const response = await pool.request({ path, method: 'POST', headers, body })
  const text = await response.body.text()
  if (response.statusCode !== 200)
    throw new Error(`${path}: status ${response.statusCode}: ${text.slice(0, 300)}`)
}

function computeGrowth(before: RetainedBytes, after: RetainedBytes, sessions: number): RetainedBytes {
  const grown = (now: number, then: number) => (now - then) / sessions
  const [now, then] = [after.counted, before.counted]
  return {
    heapBytes: grown(after.heapBytes, before.heapBytes),
    externalBytes: grown(after.externalBytes, before.externalBytes),
    counted: {
      requests: grown(now.requests, then.requests),
      messages: grown(now.messages, then.messages),
      values: grown(now.values, then.values),
      prompts: grown(now.prompts, then.prompts),
      turns: grown(now.turns, then.turns),
      all: grown(now.all, then.all),
    },
  }
}

function formatReport(all: readonly Figures[]): string {
  const kib = (bytes: number) => formatFigure(bytes / KIB)
  const rows = all.map(({ dialect, textBytes, ids, held: retained, ratio }) => {
    const { counted } = retained
    const parts = [
      counted.requests,
      counted.messages,
      counted.values,
      counted.prompts,
      counted.turns,
      counted.all,
    ]
    const process = [retained.heapBytes, retained.externalBytes]
    const content = textBytes + ID_BYTES * ids
    return [
      dialect,
      ...[textBytes, ids * ID_BYTES, content, ...parts, ...process].map(kib),
      `${formatFigure(ratio)} ×`,
    ]
  })
  const counted = ['requests', 'messages', 'values', 'prompts', 'turns', 'all that is counted']
  const head = ['KiB of a session', 'text', 'ids', 'both', ...counted, 'heap', 'buffers', 'retained of both']
  return renderTable(head, rows)
}
