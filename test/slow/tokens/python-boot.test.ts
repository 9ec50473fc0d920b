/** Python's start without a snapshot, which takes seconds. */
import t from 'tap'
import { bootWithout } from '../../../src/proxy/tokens/templates/python/boot.ts'
import { testPresentModules } from '../../unit/proxy/tokens/python-boot.ts'

t.test('Python started from no snapshot runs our modules in their present version', (t) =>
  testPresentModules(t, bootWithout),
)
