import { setImmediate } from 'node:timers/promises'
import type { Client } from 'pg'
import t from 'tap'
import { LeaseConnection } from '../../../../../src/proxy/store/postgres/lease-connection.ts'

/** A server that takes a moment for each query, and fails those that a test names. */
function startServer(fails: (sql: string, connection: number) => boolean = () => false, code?: string) {
  const log: string[] = []
  let running = 0
  let connections = 0
  const connect = async () => {
    connections += 1
    const connection = connections
    const query = async (sql: string) => {
      running += 1
      log.push(running > 1 ? `beside another one: ${sql}` : sql)
      await setImmediate()
      running -= 1
      if (fails(sql, connection)) throw Object.assign(new Error('failed'), { code })
      return { rows: [{ change: 1 }], rowCount: 1 }
    }
    return { query, end: async () => {} } as unknown as Client
  }
  return { log, connect, connections: () => connections }
}

t.test('no statement of one task is inside the transaction of another', async (t) => {
  const { log, connect } = startServer()
  const connection = new LeaseConnection(connect)
  const owner = () => connection.readOwner('s')
  await Promise.all([owner(), connection.setControl('a', 1), owner(), connection.setControl('b', 2), owner()])
  const statements = log.map((sql) => sql.trim().split(/[ ;]/)[0])
  const transaction = ['BEGIN', 'SELECT', 'INSERT', 'COMMIT']
  t.strictSame(statements, ['SELECT', ...transaction, 'SELECT', ...transaction, 'SELECT'])
})

t.test('a task that fails discards its connection, and the next one gets another', async (t) => {
  const { connect, connections } = startServer((sql) => sql.startsWith('INSERT'), '57014')
  const connection = new LeaseConnection(connect)
  const results = await Promise.allSettled([
    connection.readOwner('s'),
    connection.setControl('a', 1),
    connection.readOwner('s'),
  ])
  t.strictSame(
    results.map(({ status }) => status),
    ['fulfilled', 'rejected', 'fulfilled'],
  )
  t.equal(connections(), 2)
})

t.test('a task whose idle connection was lost is repeated over a new connection', async (t) => {
  let lostConnections = 0
  const { connect, connections } = startServer((_, connection) => connection <= lostConnections)
  const connection = new LeaseConnection(connect)
  await connection.findRollout('r')
  lostConnections = 1
  await t.resolves(connection.claimRollout('r', 7))
  t.equal(connections(), 2)
})

t.test('a task that loses a new connection too fails', async (t) => {
  let lostConnections = 0
  const { connect, connections } = startServer((_, connection) => connection <= lostConnections)
  const connection = new LeaseConnection(connect)
  await connection.findRollout('r')
  lostConnections = 2
  await t.rejects(connection.findRollout('r'), { message: 'failed' })
  t.equal(connections(), 2)
})

t.test('a task that runs while the connection is closed is not repeated', async (t) => {
  let isLost = false
  const { log, connect, connections } = startServer(() => isLost)
  const connection = new LeaseConnection(connect)
  await connection.readOwner('s')
  const running = connection.readOwner('s')
  // The task has sent its query, which the end of the connection makes fail.
  while (log.length < 2) await Promise.resolve()
  isLost = true
  await connection.close()
  await t.rejects(running)
  await t.rejects(connection.readOwner('s'), { message: /closed/ })
  t.equal(connections(), 1)
})

t.test('a renewal does not wait until all sessions of a crashed node are free', async (t) => {
  let unfreed = true
  const query = async (sql: string) => {
    await setImmediate()
    if (/FROM llm_proxy.(proxies|controls)/.test(sql) && !sql.includes('SKIP LOCKED'))
      return { rows: [], rowCount: 0 }
    return { rows: unfreed ? [{ id: 1, tree: 1 }] : [], rowCount: 1 }
  }
  const connection = new LeaseConnection(async () => ({ query, end: async () => {} }) as unknown as Client)
  const renew = () => connection.beat({ lease: 1, seen: 0 })
  t.match(await renew(), { lease: 1, freed: 0 })
  let freed = 0
  while (freed < 3) freed += (await renew())?.freed ?? 0
  unfreed = false
  await t.resolves(renew())
})
