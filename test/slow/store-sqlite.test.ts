import { join } from 'node:path'
import t from 'tap'
import { openSqliteStore } from '../../src/proxy/store/sqlite/open.ts'
import { turnStoreConformance } from '../conformance/turn-store.ts'
import { IS_FULL, ONLY_FULL } from '../helpers/tier.ts'

// The unit test runs the suite with `process`; power/power.test.ts tests what `power` adds.
if (!IS_FULL) t.pass('left out', { skip: ONLY_FULL })
else
  turnStoreConformance(t, (t) =>
    openSqliteStore({ path: join(t.testdir(), 'turns.db'), durability: 'power' }),
  )
