import t from 'tap'
import { CapabilityNegotiation } from '../../../../../../src/proxy/engines/clients/openai/capability-negotiation.ts'

const ALL = ['ids', 'logprobs', 'plain'] as const

t.test('one rejection of many concurrent requests counts once', async (t) => {
  const negotiation = new CapabilityNegotiation()
  const plans = Array.from({ length: 20 }, () => negotiation.createPlan('k', ALL))
  for (const plan of plans) negotiation.reportAccepted('k', plan, 'plain')
  t.same(negotiation.createPlan('k', ALL).levels, ALL)
  t.equal(negotiation.warning, undefined)
})

t.test('a request that was accepted in full is sent in full, even after rejections', async (t) => {
  const negotiation = new CapabilityNegotiation()
  for (const level of ['plain', 'plain', 'ids', 'plain', 'plain'] as const)
    negotiation.reportAccepted('k', negotiation.createPlan('k', ALL), level)
  t.same(negotiation.createPlan('k', ALL).levels, ALL)
})

t.test('capabilities are separate for routes, models and streams', async (t) => {
  const negotiation = new CapabilityNegotiation()
  for (let count = 0; count < 3; count += 1)
    negotiation.reportAccepted('k', negotiation.createPlan('k', ALL), 'logprobs')
  t.same(negotiation.createPlan('k', ALL).levels, ['logprobs'])
  t.same(negotiation.createPlan('other', ALL).levels, ALL)
  negotiation.reportRejected('k')
  t.same(
    negotiation.createPlan('k', ALL).levels,
    ALL,
    'an engine that rejects the reduced request too may be another server',
  )
})
