import type { Client } from 'pg'
import t from 'tap'
import type { GroupStatement } from '../../../../../src/proxy/store/postgres/group-statement.ts'
import { WriterConnection } from '../../../../../src/proxy/store/postgres/writer-connection.ts'

/** A row that each query about the lease accepts. */
const LEASE = { id: 1, slot: 1, epoch: 1, next_ids: '{}' }
const statement = { query: { name: 'group 0', text: 'WITH …', values: [] } } as unknown as GroupStatement

/** Opens a connection to a server that fails the statements of groups. */
async function open(fail: (sends: number) => unknown) {
  let sends = 0
  const query = async (sql: string | { name: string }) => {
    if (typeof sql !== 'string') {
      sends += 1
      const error = fail(sends)
      if (error !== undefined) throw error
      return { rows: [{ committed: 1, sessions: [], blobs: [] }] }
    }
    if (sql.startsWith('UPDATE llm_proxy.proxies SET epoch'))
      return { rows: [{ epoch: 2, last_group: 0, ended: 0 }] }
    return { rows: [LEASE], rowCount: 1 }
  }
  const client = { query, end: async () => {} } as unknown as Client
  const connection = await WriterConnection.open(client, async () => client, 'node')
  return { commit: () => connection.commitGroup(() => statement), countSends: () => sends }
}

t.test('a group that the driver cannot send fails after its outcome is known', async (t) => {
  for (const error of [
    new RangeError('Invalid string length'),
    new TypeError('x'),
    Object.assign(new Error('too long'), { code: 'ERR_STRING_TOO_LONG' }),
  ]) {
    const { commit, countSends } = await open((sends) => (sends === 1 ? error : undefined))
    await t.rejects(commit(), error)
    t.equal(countSends(), 1)
    t.match(await commit(), { committed: 1 }, 'the next one is committed')
  }
})

t.test('a group is sent again on a new connection, but not for ever', async (t) => {
  const lost = new Error('Connection terminated unexpectedly')
  const some = await open((sends) => (sends < 5 ? lost : undefined))
  t.match(await some.commit(), { committed: 1 })
  const all = await open((sends) => (sends <= 5 ? lost : undefined))
  await t.rejects(all.commit(), { message: /ended each connection that sent it: Connection terminated/ })
  t.equal(all.countSends(), 5)
  t.match(await all.commit(), { committed: 1 }, 'the next one is committed')
})
