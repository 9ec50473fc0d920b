import { join } from 'node:path'
import t from 'tap'
import { openSqliteStore } from '../../src/proxy/store/sqlite/open.ts'
import { turnStoreConformance } from '../conformance/turn-store.ts'

turnStoreConformance(t, (t) => openSqliteStore({ path: join(t.testdir(), 'turns.db'), durability: 'power' }))
