/** The memory that live sessions use in the proxy, relative to the text and the ids that they consist of. */
import { join } from 'node:path'
import { Pool } from 'undici'
import { Children } from '../parts/children.ts'
import { measureRetained, PROBE_ARGS, type RetainedBytes } from '../parts/held-bytes.ts'
import { GROWTH_TOKENS, REPLAY_DIALECTS, REPLAY_PATHS, type ReplayDialect } from '../parts/replay-job.ts'
import { ReplayedConversation, type Script } from '../parts/replayed-session.ts'
import { figure, table } from '../parts/table.ts'
import { Targets } from '../parts/targets.ts'
import type { Bench, Row } from './row.ts'

const FULL = { sessions: 12, promptTokens: 100_000 }
const QUICK = { sessions: 2, promptTokens: 25_000 }
/** Tokens of the first request of each session: system prompt, tools, and a task. */
const FIRST_TOKENS = 20_000
const SYSTEM_TOKENS = 2_800
const TOOL_TOKENS = 12_600
/** So much that nothing is evicted. */
const PLENTY = '4GiB'
const ID_BYTES = 4
const KIB = 1024
const MOST_OF_CONTENT = 2

/** The figures of one session. */
interface Figures {
  dialect: ReplayDialect
  textBytes: number
  ids: number
  held: RetainedBytes
  /** The memory that the process uses for it, relative to its text and 4 bytes for each id. */
  ratio: number
}

export const liveSessions: Row = async (bench) => {
  const all: Figures[] = []
  for (const dialect of REPLAY_DIALECTS) all.push(await measure(bench, dialect))
  return {
    row: 'live-sessions',
    report: `### Memory of a session that goes on\n\n${formatReport(all)}`,
    aims: all.map(({ dialect, ratio }) => ({
      what: `memory of a session (${dialect}), of its text and 4 bytes for each id`,
      wanted: `at most ${MOST_OF_CONTENT} times`,
      measured: `${figure(ratio)} times`,
      met: ratio <= MOST_OF_CONTENT,
    })),
    figures: all,
  }
}

/** Measures in a separate process, so that it contains nothing of another dialect. */
async function measure({ engineUrl, folder, quick }: Bench, dialect: ReplayDialect): Promise<Figures> {
  const { sessions, promptTokens } = quick ? QUICK : FULL
  await using children = new Children()
  const proxy = await new Targets(children, engineUrl).startLocal({
    db: join(folder, `live-sessions-${dialect}.db`),
    args: ['--session-memory', PLENTY],
    nodeArgs: PROBE_ARGS,
  })
  await using pool = new Disposing(new Pool(proxy.url, { connections: sessions, pipelining: 1 }))
  const replay = (name: string, count: number) =>
    Promise.all(
      Array.from({ length: count }, (_, index) =>
        run(pool.it, dialect, `${name}-${index}`, promptTokens, index),
      ),
    )
  // Warm up: create what all sessions share.
  await replay('first', Math.ceil(sessions / 2))
  const before = await measureRetained(proxy)
  const bodies = await replay('live', sessions)
  const retained = perSession(before, await measureRetained(proxy), sessions)
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
  const prompts = Array.from({ length: count }, (_, call) => FIRST_TOKENS + call * GROWTH_TOKENS)
  const script: Script = { systemTokens: SYSTEM_TOKENS, toolTokens: TOOL_TOKENS, prompts }
  const conversation = new ReplayedConversation(dialect, script, 0, seed * 1_000)
  let bytes = 0
  while (!conversation.isOver) {
    const { body } = conversation.next()
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

class Disposing<Thing extends { destroy(): Promise<void> }> implements AsyncDisposable {
  readonly it: Thing

  constructor(it: Thing) {
    this.it = it
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.it.destroy()
  }
}

function perSession(before: RetainedBytes, after: RetainedBytes, sessions: number): RetainedBytes {
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
  const kib = (bytes: number) => figure(bytes / KIB)
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
      `${figure(ratio)} ×`,
    ]
  })
  const counted = ['requests', 'messages', 'values', 'prompts', 'turns', 'all that is counted']
  const head = ['KiB of a session', 'text', 'ids', 'both', ...counted, 'heap', 'buffers', 'held of both']
  return table(head, rows)
}
