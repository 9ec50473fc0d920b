import t from 'tap'
import { annotationsToWire } from '../../../../../../src/proxy/http/trainer/sessions/serialise.ts'

t.test('annotations have the current names beside the stored ones', (t) => {
  const stored = '{"line":{"told":"side","rule":"header"},"resumed_at":3,"big":12345678901234567890}'
  t.equal(
    annotationsToWire(stored),
    `${stored.slice(0, -1)},"agent_role":{"told":"side","rule":"header"},"recovered_at_index":3}`,
  )
  t.equal(annotationsToWire('{"resumed_at":0}'), '{"resumed_at":0,"recovered_at_index":0}')
  for (const other of ['{}', '{"prompt":{"line":1}}', '{"text":"\\"line\\""}'])
    t.equal(annotationsToWire(other), other)
  t.end()
})
