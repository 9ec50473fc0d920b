import Type from 'typebox'
import { SearchHits, SessionList, Tree } from '../../proxy/http/trainer/sessions/read-schemas.ts'
import { SessionWithTurns, ShownTurn, Trajectories } from '../../proxy/http/trainer/sessions/schemas.ts'
import { OperatorClient, type ProxyAddress } from '../proxy-client.ts'
import type { SessionsApi } from './api.ts'
import { openDatabaseApi } from './database-api.ts'

const Conversation = Type.Object({ turns: Type.Array(ShownTurn) })

/** The source of sessions: a running proxy if it has a `url`, otherwise the database. */
interface SessionsSource extends ProxyAddress {
  readonly db: string
}

/** Opens the API, passes it to `use`, and always closes it. */
export async function withSessionsApi<T>(
  { db, ...address }: SessionsSource,
  use: (api: SessionsApi) => Promise<T>,
): Promise<T> {
  const api = address.url === undefined ? await openDatabaseApi(db) : createProxyApi(address)
  try {
    return await use(api)
  } finally {
    await api.close()
  }
}

/**
 * Returns the sessions API of a running proxy.
 * @throws ProxyError `config_invalid` for a file without certificate authorities
 */
function createProxyApi(address: ProxyAddress): SessionsApi {
  const proxy = new OperatorClient(address)
  const at = (sessionId: string) => `/sessions/${encodeURIComponent(sessionId)}`
  return {
    list: ({ metadata = {}, ...filters }) => {
      const query = toSearchParams(filters)
      for (const [name, value] of Object.entries(metadata)) query.set(`metadata.${name}`, value)
      return proxy.get(`/sessions?${query}`, SessionList)
    },
    search: (search) => proxy.get(`/search?${toSearchParams(search)}`, SearchHits),
    getWithTurns: (sessionId) => proxy.get(`${at(sessionId)}?messages=all`, SessionWithTurns),
    getTree: (sessionId) => proxy.get(`${at(sessionId)}/tree`, Tree),
    getConversation: async (sessionId) =>
      (await proxy.get(`${at(sessionId)}?messages=new&ids=false`, Conversation)).turns,
    getWithTrajectories: (sessionId, rows) =>
      proxy.get(`${at(sessionId)}/trajectories?${toSearchParams(rows)}`, Trajectories),
    exportSession: (sessionId, query) => proxy.streamText(`${at(sessionId)}/export?${toSearchParams(query)}`),
    close: async () => {},
  }
}

/** Converts the defined values to search parameters. */
function toSearchParams(fields: object): URLSearchParams {
  const query = new URLSearchParams()
  for (const [name, value] of Object.entries(fields)) {
    if (value !== undefined) query.set(name, String(value))
  }
  return query
}
