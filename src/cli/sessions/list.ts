import type { SessionsListConfig } from '../../config/options/sessions.ts'
import { type Column, printable, renderTable } from '../table.ts'
import type { ListQuery, SessionJson, SessionsApi } from './api.ts'
import { withSessionsApi } from './open-api.ts'

const PAGE_SIZE = 200

const COLUMNS: readonly Column<SessionJson>[] = [
  { header: 'session', value: (session) => printable(session.session_id) },
  { header: 'status', value: (session) => session.status },
  { header: 'turns', value: (session) => String(session.num_turns), align: 'right' },
  { header: 'reward', value: (session) => String(session.reward ?? '-'), align: 'right' },
  { header: 'created', value: (session) => new Date(session.created_at * 1000).toISOString() },
]

/** `llm-proxy sessions list`. @returns the exit code */
export function run(config: SessionsListConfig): Promise<number> {
  return withSessionsApi(config, async (api) => {
    const sessions: SessionJson[] = []
    for await (const session of listSessions(api, config)) sessions.push(session)
    const text = config.json ? JSON.stringify(sessions, undefined, 2) : renderTable(COLUMNS, sessions)
    process.stdout.write(`${text}\n`)
    return 0
  })
}

/** Newest first, page by page; all of them without a limit. */
export async function* listSessions(
  api: SessionsApi,
  { status, limit }: Pick<ListQuery, 'status'> & { limit?: number | undefined },
): AsyncGenerator<SessionJson> {
  let left = limit ?? Number.POSITIVE_INFINITY
  let cursor: string | undefined
  do {
    const page = await api.list({ status, limit: Math.min(left, PAGE_SIZE), cursor })
    yield* page.sessions
    left -= page.sessions.length
    cursor = page.next_cursor ?? undefined
  } while (cursor !== undefined && left > 0)
}
