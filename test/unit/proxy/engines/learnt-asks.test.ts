import t from 'tap'
import { CapabilityNegotiation } from '../../../../src/proxy/engines/clients/openai/capability-negotiation.ts'

const ALL = ['ids', 'logprobs', 'plain'] as const

t.test('one rejection of many concurrent requests counts once', async (t) => {
  const learnt = new CapabilityNegotiation()
  const plans = Array.from({ length: 20 }, () => learnt.createPlan('k', ALL))
  for (const plan of plans) learnt.reportAccepted('k', plan, 'plain')
  t.same(learnt.createPlan('k', ALL).levels, ALL)
  t.equal(learnt.warning, undefined)
})

t.test('a request that was accepted in full is sent in full, whatever was rejected before', async (t) => {
  const learnt = new CapabilityNegotiation()
  for (const ask of ['plain', 'plain', 'ids', 'plain', 'plain'] as const)
    learnt.reportAccepted('k', learnt.createPlan('k', ALL), ask)
  t.same(learnt.createPlan('k', ALL).levels, ALL)
})

t.test('capabilities are separate for routes, models and streams', async (t) => {
  const learnt = new CapabilityNegotiation()
  for (let call = 0; call < 3; call += 1) learnt.reportAccepted('k', learnt.createPlan('k', ALL), 'logprobs')
  t.same(learnt.createPlan('k', ALL).levels, ['logprobs'])
  t.same(learnt.createPlan('other', ALL).levels, ALL)
  learnt.reportRejected('k')
  t.same(
    learnt.createPlan('k', ALL).levels,
    ALL,
    'an engine that rejects the reduced request too may be another server',
  )
})
