/**
 * Measures how long a trainer waits for rows: from `POST /sessions/{id}/complete` until the first row of the session has
 * arrived. The row of a conversation without branches contains all its turns, so the time grows with them.
 */
import { join } from 'node:path'
import { Children } from '../parts/children.ts'
import { converse } from '../parts/growing-session.ts'
import { quantile } from '../parts/statistics.ts'
import { formatFigure, renderTable } from '../parts/table.ts'
import { Targets } from '../parts/targets.ts'
import type { Row } from './row.ts'

/** Sessions by their number of turns: more of the shorter ones, whose times vary more. */
const FULL = [
  { turns: 1, sessions: 100 },
  { turns: 20, sessions: 30 },
  { turns: 200, sessions: 5 },
]
const QUICK = [{ turns: 2, sessions: 2 }]
const WARM_UP = { turns: 20, sessions: 10 }

interface WaitTimes {
  turns: number
  /** The time until the response to `complete`. */
  completedMs: number[]
  /** The time until the first row. */
  firstRowMs: number[]
}

export const firstRow: Row = async ({ engineUrl, folder, quick }) => {
  await using children = new Children()
  const proxy = await new Targets(children, engineUrl).startLocal({ db: join(folder, 'first-row.db') })
  if (!quick) await measure(proxy.url, WARM_UP, 'warm-up')
  const times: WaitTimes[] = []
  for (const plan of quick ? QUICK : FULL) times.push(await measure(proxy.url, plan, `first-${plan.turns}`))
  const rows = times.map(({ turns, completedMs, firstRowMs }) => [
    String(turns),
    formatFigure(quantile(completedMs, 0.5)),
    formatFigure(quantile(firstRowMs, 0.5)),
    formatFigure(Math.max(...firstRowMs)),
  ])
  const head = ['turns', 'complete, p50 ms', 'first row, p50 ms', 'first row, max ms']
  return {
    row: 'first-row',
    report: `### From \`complete\` to the first row\n\n${renderTable(head, rows)}`,
    aims: [],
    figures: times,
  }
}

async function measure(
  proxyUrl: string,
  { turns, sessions }: (typeof FULL)[number],
  prefix: string,
): Promise<WaitTimes> {
  const times: WaitTimes = { turns, completedMs: [], firstRowMs: [] }
  for (let index = 0; index < sessions; index += 1) {
    await converse(`${proxyUrl}/${prefix}-${index}/v1/chat/completions`, index, turns)
    const session = `${proxyUrl}/sessions/${prefix}-${index}`
    const startedAt = performance.now()
    const completed = await fetch(`${session}/complete`, { method: 'POST' })
    if (!completed.ok) throw new Error(`complete failed: ${await completed.text()}`)
    await completed.arrayBuffer()
    times.completedMs.push(performance.now() - startedAt)
    await readFirstRow(`${session}/trajectories`)
    times.firstRowMs.push(performance.now() - startedAt)
  }
  return times
}

/** @throws Error if the session has no row */
async function readFirstRow(url: string): Promise<void> {
  const response = await fetch(url)
  const { trajectories } = (await response.json()) as { trajectories?: unknown[] }
  if (!trajectories?.length) throw new Error(`${url}: status ${response.status} without a row`)
}
