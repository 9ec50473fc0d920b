import t from 'tap'
import { openPostgresStore } from '../../src/proxy/store/postgres/open.ts'
import { turnStoreConformance } from '../conformance/turn-store.ts'
import { noPostgres, PostgresServer } from '../helpers/postgres.ts'

if (noPostgres !== false) {
  t.pass(`left out: ${noPostgres}`)
} else {
  const server = await PostgresServer.start()
  t.teardown(() => server.end())
  turnStoreConformance(t, async () =>
    openPostgresStore({ url: await server.newDatabase(), durability: 'process' }),
  )
}
