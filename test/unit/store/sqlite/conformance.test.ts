import { join } from 'node:path'
import t from 'tap'
import { openSqliteStore } from '../../../../src/proxy/store/sqlite/open.ts'
import { turnStoreConformance } from '../../../conformance/turn-store.ts'
import { inProcess } from '../../../helpers/store-in-process.ts'

// On threads of its own, and safe from a loss of power, in `test/slow/store-sqlite.test.ts`.
turnStoreConformance(t, (t) =>
  openSqliteStore({ path: join(t.testdir(), 'turns.db'), durability: 'process', spawn: inProcess }),
)
