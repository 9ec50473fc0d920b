/** Python's start from the snapshot of its memory. */
import t from 'tap'
import { bootPython } from '../../../../src/proxy/tokens/templates/python/boot.ts'
import { testPresentModules } from './python-boot.ts'

t.test(
  'Python started from the snapshot of an older program runs our modules in their present version',
  (t) => testPresentModules(t, bootPython),
)
