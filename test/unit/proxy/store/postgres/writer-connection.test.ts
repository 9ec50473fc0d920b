import type { Client } from 'pg'
import t from 'tap'
import { ProxyError } from '../../../../../src/base/errors.ts'
import type { GroupStatement } from '../../../../../src/proxy/store/postgres/group-statement.ts'
import {
  type GroupIdentity,
  WriterConnection,
} from '../../../../../src/proxy/store/postgres/writer-connection.ts'

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

const LOST = new Error('Connection terminated unexpectedly')

/** Opens a connection to a server that applies groups, with a fault for some of its statements. */
async function openModel(find: (statement: 'group' | 'epoch' | 'insert lease', count: number) => unknown) {
  const server = {
    epoch: 1,
    last_group: 0,
    ended: 0,
    groups: [] as string[],
    counts: new Map<string, number>(),
  }
  const fail = (statement: Parameters<typeof find>[0]) => {
    const count = (server.counts.get(statement) ?? 0) + 1
    server.counts.set(statement, count)
    const error = find(statement, count)
    if (error !== undefined) throw error
  }
  let isDeleted = false
  const query = async (sql: string | (GroupIdentity & { name: string })) => {
    if (typeof sql !== 'string') {
      if (sql.lease.epoch !== server.epoch) return { rows: [{ committed: 0, sessions: [], blobs: [] }] }
      server.last_group = sql.group
      server.groups.push(sql.name)
      fail('group')
      return { rows: [{ committed: 1, sessions: [], blobs: [] }] }
    }
    if (sql.startsWith('UPDATE llm_proxy.proxies SET epoch')) {
      fail('epoch')
      server.epoch += 1
      return { rows: isDeleted ? [] : [{ ...server }] }
    }
    if (sql.startsWith('DELETE FROM llm_proxy.proxies')) isDeleted = server.ended === 1
    if (sql.startsWith('INSERT INTO llm_proxy.proxies')) {
      fail('insert lease')
      return { rows: [{ id: isDeleted ? 2 : 1 }], rowCount: 1 }
    }
    return { rows: [LEASE], rowCount: 1 }
  }
  const client = { query, end: async () => {} } as unknown as Client
  const connection = await WriterConnection.open(client, async () => client, 'node')
  const commit = (name: string) =>
    connection.commitGroup((number) => ({ query: { ...number, name } }) as unknown as GroupStatement)
  return { server, connection, commit }
}

t.test('errors of the server while the outcome of a commit is determined are retried', async (t) => {
  for (const code of ['53100', '53200', '58030', '57014']) {
    const failed = Object.assign(new Error('No space left on device'), { code })
    const { server, commit } = await openModel((statement, count) => {
      if (statement === 'group') return count === 1 ? LOST : undefined
      return statement === 'epoch' && count === 1 ? failed : undefined
    })
    t.match(await commit('A'), { committed: 1 }, `A committed group is acknowledged after ${code}`)
    t.match(await commit('B'), { committed: 1 })
    t.strictSame(server.groups, ['A', 'B'], 'each is committed once')
    t.equal(server.last_group, 2, 'the next one has the next number')
  }
})

t.test('a committed group is acknowledged if acquiring a new lease after it fails', async (t) => {
  const full = Object.assign(new Error('No space left on device'), { code: '53100' })
  for (const error of [LOST, full]) {
    const model = await openModel((statement, count) => {
      if (statement === 'group' && count === 1) {
        // Another node ends the lease before this one has reconnected.
        model.server.ended = 1
        return LOST
      }
      return statement === 'insert lease' && count === 2 ? error : undefined
    })
    t.match(await model.commit('A'), { committed: 1 })
    t.equal(model.connection.lease.id, 2)
    t.equal(model.connection.lost, undefined)
  }
})

t.test('a connection that cannot determine the outcome of a commit never writes again', async (t) => {
  for (const [error, reason] of [
    [
      new ProxyError('start_failed', 'a newer llm-proxy has migrated the database'),
      / \(a newer llm-proxy has .*\): restart/,
    ],
    [new TypeError('text of a turn'), /cannot be determined: restart llm-proxy$/],
  ] as const) {
    const { server, connection, commit } = await openModel((statement, count) => {
      if (statement === 'group') return count === 1 ? LOST : undefined
      return statement === 'epoch' ? error : undefined
    })
    await t.rejects(commit('A'), { code: 'store_failed', message: reason })
    t.match(connection.lost, { code: 'store_failed', message: reason }, 'the thread ends with it')
    await t.rejects(commit('B'), connection.lost!)
    t.strictSame(server.groups, ['A'])
  }
})
