import { createHash } from 'node:crypto'
import t from 'tap'
import Type from 'typebox'
import * as protocol from '../../../../src/protocol/worker/protocol.ts'

/**
 * Workers of other versions, and of other authors, are deployed. A changed hash means a changed wire: if an
 * old worker still understands every frame and is still understood, write the new hash here; otherwise it is
 * a new version.
 */
const HASH = '9adcb4e658ab98d5'

t.test('the wire schema is unchanged', async (t) => {
  const schemas = Object.entries(protocol).filter(([, value]) => Type.IsSchema(value))
  t.ok(schemas.length >= 19, 'it contains all frames')
  const text = JSON.stringify([Object.fromEntries(schemas.sort()), protocol.CLOSE, protocol.CAPABILITIES])
  t.equal(createHash('sha256').update(text).digest('hex').slice(0, 16), HASH)
})
