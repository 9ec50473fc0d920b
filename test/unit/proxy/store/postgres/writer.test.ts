import type { Client } from 'pg'
import t from 'tap'
import { toNewRow } from '../../../../../src/proxy/store/common/session-rows.ts'
import { Writer } from '../../../../../src/proxy/store/postgres/writer.ts'
import { createSession } from '../../../../conformance/turn-store.ts'

interface StatementQuery {
  readonly text: string
  readonly values: readonly unknown[]
}

/** Returns the primary keys of the rows that a group inserts. */
function getInsertedKeys({ text, values }: StatementQuery): string[] {
  const inserts = text.matchAll(/INSERT INTO llm_proxy\.(\w+) \(id.*?unnest\(\$(\d+)/gs)
  return [...inserts].flatMap(([, table, parameter]) =>
    (values[Number(parameter) - 1] as number[]).map((id) => `${table} ${id}`),
  )
}

/** A server that commits the second group, loses its reply, and has no space when the writer reconnects. */
function createServer() {
  const keys = new Set<string>()
  const lease = { epoch: 1, last_group: 0, ended: 0 }
  let groups = 0
  let reconnections = 0
  const commit = (query: StatementQuery) => {
    const inserted = getInsertedKeys(query)
    if (inserted.some((key) => keys.has(key)))
      throw Object.assign(new Error('duplicate key'), { code: '23505' })
    for (const key of inserted) keys.add(key)
    groups += 1
    lease.last_group = groups
    if (groups === 2) throw new Error('Connection terminated unexpectedly')
    return { rows: [{ committed: 1, sessions: [], blobs: [] }] }
  }
  const query = async (sql: string | StatementQuery) => {
    const text = typeof sql === 'string' ? sql : sql.text
    if (text.startsWith('WITH locked_sessions')) return commit(sql as StatementQuery)
    if (text.startsWith('UPDATE llm_proxy.proxies SET epoch')) {
      reconnections += 1
      if (reconnections === 1) throw Object.assign(new Error('No space left on device'), { code: '53100' })
      lease.epoch += 1
      return { rows: [{ ...lease }] }
    }
    if (text.includes('AS last')) return { rows: [{ last: 0 }] }
    if (/FROM llm_proxy\.(sessions|texts|nodes|blobs|blob_uses|turns)/.test(text)) return { rows: [] }
    return { rows: [{ id: 1, slot: 1, next_ids: '{}', pid: 1, started_s: '1' }], rowCount: 1 }
  }
  return { keys, client: { query, end: async () => {} } as unknown as Client }
}

t.test(
  'a full disk while the writer reconnects after a commit fails neither it nor later ones',
  async (t) => {
    const { client, keys } = createServer()
    const writer = await Writer.open({ client, reconnect: async () => client, name: 'node', cacheBytes: 1e6 })
    for (const [id, sessionId] of ['a', 'b', 'c', 'd'].entries()) {
      const replies = await writer.commit([
        { id, method: 'createSession', args: [toNewRow(createSession(sessionId))] },
      ])
      t.match(replies, [{ id, error: undefined }], sessionId)
    }
    t.equal([...keys].filter((key) => key.startsWith('sessions ')).length, 4)
  },
)
