/**
 * Token mode: measures whether a turn costs more with a longer history, and whether a long prompt blocks other
 * requests.
 */
import { once } from 'node:events'
import { join } from 'node:path'
import { Children } from '../parts/children.ts'
import type { Spread } from '../parts/statistics.ts'
import { formatFigure, renderTable } from '../parts/table.ts'
import { formatThreadFigures, THREAD_TITLES } from '../parts/thread-figures.ts'
import type { Row } from './row.ts'

export interface TokenFigures {
  /** A prompt whose text was not tokenized before. */
  first: TokenTimes & { encoder: string }
  /** Turns of 1 KB after histories of these lengths. */
  turns: TokenTimes[]
  /** Short requests beside new long prompts. */
  besides: { requests: number; p50Ms: number; p99Ms: number; firstPromptMs: number; longestBlockMs: number }
}

interface TokenTimes {
  tokens: number
  ms: Spread
  threadCpuMs: Record<string, number>
}

const TIMEOUT_MS = 120_000
/** The limits for a new prompt of 100,000 tokens, with the addon and with npm's library. */
const MAX_FIRST_MS = { fastokens: 40, others: 120 }

export const token: Row = async ({ quick }) => {
  await using children = new Children()
  const args = [join(import.meta.dirname, '../processes/token-turns.ts'), ...(quick ? ['--quick'] : [])]
  const child = await children.start({ name: 'token mode', args, silent: true, ipc: true })
  const signal = AbortSignal.timeout(TIMEOUT_MS)
  const [figures] = (await once(child.process, 'message', { signal })) as [TokenFigures]
  const { first, turns, besides } = figures
  const firstMs = Object.values(first.threadCpuMs).reduce((sum, ms) => sum + ms, 0)
  const maxFirstMs = first.encoder === 'fastokens' ? MAX_FIRST_MS.fastokens : MAX_FIRST_MS.others
  const growth = turns.at(-1)!.ms.median / turns[0]!.ms.median
  return {
    row: 'token',
    report: [
      '### Token mode: a turn of 1 KB, without HTTP and engine',
      renderTimes('tokens of history', turns),
      `### A prompt that arrives for the first time, tokenized by ${first.encoder}`,
      renderTimes('tokens', [first]),
      '### Short requests while prompts of 128,000 tokens arrive for the first time',
      renderTable(
        ['requests', 'p50 ms', 'p99 ms', 'longest block ms', 'first prompt ms'],
        [
          [
            String(besides.requests),
            formatFigure(besides.p50Ms),
            formatFigure(besides.p99Ms),
            formatFigure(besides.longestBlockMs),
            formatFigure(besides.firstPromptMs),
          ],
        ],
      ),
    ].join('\n\n'),
    aims: [
      {
        what: 'CPU time of a prompt of 100,000 tokens that arrives for the first time',
        wanted: `at most ${maxFirstMs} ms`,
        measured: `${formatFigure(firstMs)} ms`,
        met: firstMs <= maxFirstMs,
      },
      {
        what: 'a turn in token mode after 128,000 tokens, of one after 2,000',
        wanted: 'below 2 times',
        measured: `${formatFigure(growth)} times`,
        met: growth < 2,
      },
      {
        what: 'p99 of a short request while a prompt of 128,000 tokens is tokenized for the first time',
        wanted: 'below 20 ms',
        measured: `${formatFigure(besides.p99Ms)} ms`,
        met: besides.p99Ms < 20,
      },
    ],
    figures,
  }
}

function renderTimes(title: string, times: readonly TokenTimes[]): string {
  return renderTable(
    [title, 'ms', 'min–max', ...THREAD_TITLES.map((thread) => `CPU ms, ${thread}`)],
    times.map(({ tokens, ms, threadCpuMs }) => [
      String(tokens),
      formatFigure(ms.median),
      `${formatFigure(ms.min)}–${formatFigure(ms.max)}`,
      ...formatThreadFigures(threadCpuMs),
    ]),
  )
}
