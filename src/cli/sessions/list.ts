import { ProxyError } from '../../base/errors.ts'
import type { SessionsListConfig } from '../../proxy/config/options/sessions.ts'
import { applyColour } from '../colours.ts'
import { type Column, formatJson, formatNumber, renderTable, toPrintable } from '../table.ts'
import type { ListQuery, SessionJson, SessionsApi } from './api.ts'
import { withSessionsApi } from './open-api.ts'

const PAGE_SIZE = 200

const COLUMNS: readonly Column<SessionJson>[] = [
  { header: 'session', value: (session) => toPrintable(session.session_id) },
  { header: 'status', value: ({ status }) => status, style: ({ status }, cell) => applyColour(status, cell) },
  { header: 'turns', value: (session) => String(session.num_turns), align: 'right' },
  {
    header: 'reward',
    value: (session) => (session.reward === null ? '-' : formatNumber(session.reward)),
    align: 'right',
  },
  { header: 'labels', value: ({ labels }) => toPrintable(labels.join(', ')) },
  { header: 'created', value: (session) => new Date(session.created_at * 1000).toISOString() },
]

/** Runs `llm-proxy sessions list`. @returns the exit code */
export function run(config: SessionsListConfig): Promise<number> {
  return withSessionsApi(config, async (api) => {
    const sessions: SessionJson[] = []
    for await (const session of listSessions(api, toListQuery(config), config.limit)) sessions.push(session)
    const text = config.json ? formatJson(sessions, 2) : renderTable(COLUMNS, sessions)
    process.stdout.write(`${text}\n`)
    return 0
  })
}

/** Converts the options to a query. @throws ProxyError `config_invalid` */
function toListQuery({ status, run, sort, sinceMs, label, metadata }: SessionsListConfig): ListOptions {
  return {
    status,
    run,
    sort,
    label,
    since: sinceMs === undefined ? undefined : (Date.now() - sinceMs) / 1_000,
    metadata: Object.fromEntries(
      metadata.map((text) => {
        const mark = text.indexOf('=')
        if (mark > 0) return [text.slice(0, mark), text.slice(mark + 1)]
        throw new ProxyError('config_invalid', `--metadata is key=value, not ${text}`)
      }),
    ),
  }
}

type ListOptions = Omit<ListQuery, 'limit' | 'cursor'>

/** Yields sessions page by page, newest first unless `sort` is set. @param limit default: all of them */
export async function* listSessions(
  api: SessionsApi,
  wanted: ListOptions,
  limit = Number.POSITIVE_INFINITY,
): AsyncGenerator<SessionJson> {
  let left = limit
  let cursor: string | undefined
  do {
    const page = await api.list({ ...wanted, limit: Math.min(left, PAGE_SIZE), cursor })
    yield* page.sessions
    left -= page.sessions.length
    cursor = page.next_cursor ?? undefined
  } while (cursor !== undefined && left > 0)
}

/** Yields the named sessions, or all of them if none is named. @param run only sessions of this run */
export async function* listSessionIds(
  api: SessionsApi,
  named: readonly string[],
  run?: string,
): AsyncGenerator<string> {
  yield* named
  if (named.length > 0) return
  for await (const { session_id: sessionId } of listSessions(api, { run })) yield sessionId
}
