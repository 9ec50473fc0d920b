import t from 'tap'
import { CapabilityNegotiation } from '../../../../src/proxy/engines/clients/openai/capability-negotiation.ts'

const ALL = ['ids', 'logprobs', 'plain'] as const

t.test('one refusal that hits many calls at once is one refusal', async (t) => {
  const learnt = new CapabilityNegotiation()
  const plans = Array.from({ length: 20 }, () => learnt.planFor('k', ALL))
  for (const plan of plans) learnt.accepted('k', plan, 'plain')
  t.same(learnt.planFor('k', ALL).levels, ALL)
  t.equal(learnt.shortage, undefined)
})

t.test('what was accepted in full is asked in full, whatever was refused before', async (t) => {
  const learnt = new CapabilityNegotiation()
  for (const ask of ['plain', 'plain', 'ids', 'plain', 'plain'] as const)
    learnt.accepted('k', learnt.planFor('k', ALL), ask)
  t.same(learnt.planFor('k', ALL).levels, ALL)
})

t.test('routes, models and streams learn apart', async (t) => {
  const learnt = new CapabilityNegotiation()
  for (let call = 0; call < 3; call += 1) learnt.accepted('k', learnt.planFor('k', ALL), 'logprobs')
  t.same(learnt.planFor('k', ALL).levels, ['logprobs'])
  t.same(learnt.planFor('other', ALL).levels, ALL)
  learnt.rejected('k')
  t.same(learnt.planFor('k', ALL).levels, ALL, 'one that refuses the lesser ask too may be another server')
})
