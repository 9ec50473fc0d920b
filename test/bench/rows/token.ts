/** Token mode: does a turn cost more the longer its history is, and does a long prompt hold up other calls? */
import { once } from 'node:events'
import { join } from 'node:path'
import { Children } from '../parts/children.ts'
import type { Spread } from '../parts/statistics.ts'
import { figure, table } from '../parts/table.ts'
import { THREAD_TITLES, threadFigures } from '../parts/thread-figures.ts'
import type { Row } from './row.ts'

export interface TokenFigures {
  /** A turn of 1 KB behind a history of so many tokens. */
  turns: { tokens: number; ms: Spread; threadCpuMs: Record<string, number> }[]
  /** Short calls beside long prompts that come for the first time. */
  besides: { calls: number; p50Ms: number; p99Ms: number; firstPromptMs: number; longestBlockMs: number }
}

const PATIENCE_MS = 120_000

export const token: Row = async ({ quick }) => {
  await using children = new Children()
  const args = [join(import.meta.dirname, '../processes/token-turns.ts'), ...(quick ? ['--quick'] : [])]
  const child = await children.start({ name: 'token mode', args, silent: true, ipc: true })
  const signal = AbortSignal.timeout(PATIENCE_MS)
  const [figures] = (await once(child.process, 'message', { signal })) as [TokenFigures]
  const { turns, besides } = figures
  const growth = turns.at(-1)!.ms.median / turns[0]!.ms.median
  return {
    row: 'token',
    report: [
      '### Token mode: a turn of 1 KB, without HTTP and engine',
      table(
        ['tokens of history', 'ms', 'min–max', ...THREAD_TITLES.map((title) => `CPU ms, ${title}`)],
        turns.map(({ tokens, ms, threadCpuMs }) => [
          String(tokens),
          figure(ms.median),
          `${figure(ms.min)}–${figure(ms.max)}`,
          ...threadFigures(threadCpuMs),
        ]),
      ),
      '### Short calls while prompts of 128,000 tokens come for the first time',
      table(
        ['calls', 'p50 ms', 'p99 ms', 'longest block ms', 'first prompt ms'],
        [
          [
            String(besides.calls),
            figure(besides.p50Ms),
            figure(besides.p99Ms),
            figure(besides.longestBlockMs),
            figure(besides.firstPromptMs),
          ],
        ],
      ),
    ].join('\n\n'),
    aims: [
      {
        what: 'a turn in token mode after 128,000 tokens, of one after 2,000',
        wanted: 'below 2 times',
        measured: `${figure(growth)} times`,
        met: growth < 2,
      },
      {
        what: 'p99 of a short call while a prompt of 128,000 tokens is tokenized for the first time',
        wanted: 'below 20 ms',
        measured: `${figure(besides.p99Ms)} ms`,
        met: besides.p99Ms < 20,
      },
    ],
    figures,
  }
}
