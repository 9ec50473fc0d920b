import { join } from 'node:path'
import t, { type Test } from 'tap'
import { openSqliteStore } from '../../../../../src/proxy/store/sqlite/open.ts'
import { consumerConformance } from '../../../../conformance/consumers.ts'
import { turnStoreConformance } from '../../../../conformance/turn-store.ts'
import { inProcess } from '../../../../helpers/store-in-process.ts'

// The tests with threads, and with protection against power loss, are in `test/slow/store-sqlite.test.ts`.
const open = (t: Test) =>
  openSqliteStore({ path: join(t.testdir(), 'turns.db'), durability: 'process', spawn: inProcess })

turnStoreConformance(t, open)
consumerConformance(t, open)
