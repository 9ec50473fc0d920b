/**
 * Bytes on disk of growing conversations: measures whether they grow with the text, or with the square of the turns.
 */
import { readdirSync, statSync } from 'node:fs'
import { join } from 'node:path'
import { Children } from '../parts/children.ts'
import { converse } from '../parts/growing-session.ts'
import { formatFigure, renderTable } from '../parts/table.ts'
import { Targets } from '../parts/targets.ts'
import type { Bench, Row } from './row.ts'

const SESSIONS = 10
const TURNS = { full: 100, quick: 10 }
const BYTES_PER_ID = 4

export const disk: Row = async (bench) => {
  const turns = bench.quick ? TURNS.quick : TURNS.full
  const emptyBytes = await record(bench, 'disk-empty', async () => {})
  const content = { textBytes: 0, ids: 0 }
  const bytes = await record(bench, 'disk', async (proxyUrl) => {
    for (let session = 0; session < SESSIONS; session += 1) {
      const added = await converse(`${proxyUrl}/disk-${session}/v1/chat/completions`, session, turns)
      content.textBytes += added.textBytes
      content.ids += added.ids
    }
  })
  const stored = bytes - emptyBytes
  const needed = content.textBytes + content.ids * BYTES_PER_ID
  const perSession = (total: number) => formatFigure(total / SESSIONS / 1000)
  return {
    row: 'disk',
    report: `### Disk: a session of ${turns} turns that grows by 2 KB a turn (mean of ${SESSIONS})\n\n${renderTable(
      ['', 'text KB', 'ids KB', 'on disk KB', 'ratio', 'bytes/turn'],
      [
        [
          'session',
          perSession(content.textBytes),
          perSession(content.ids * BYTES_PER_ID),
          perSession(stored),
          formatFigure(stored / needed),
          formatFigure(stored / SESSIONS / turns),
        ],
      ],
    )}`,
    aims: [
      {
        what: `disk space of a ${turns}-turn session, of its text plus ids`,
        wanted: 'at most 3 times',
        measured: `${formatFigure(stored / needed)} times`,
        met: stored <= 3 * needed,
      },
    ],
    figures: { sessions: SESSIONS, turns, ...content, diskBytes: stored },
  }
}

/**
 * Records conversations.
 * @returns the size of the database once the proxy has closed it
 */
async function record(
  { engineUrl, folder, cpuProfileFolder }: Bench,
  name: string,
  run: (proxyUrl: string) => Promise<void>,
): Promise<number> {
  {
    await using children = new Children()
    const db = join(folder, `${name}.db`)
    const proxy = await new Targets(children, engineUrl).startLocal({ db, cpuProfileFolder })
    await run(proxy.url)
  }
  const files = readdirSync(folder).filter((file) => file.startsWith(`${name}.db`))
  return files.reduce((sum, file) => sum + statSync(join(folder, file)).size, 0)
}
