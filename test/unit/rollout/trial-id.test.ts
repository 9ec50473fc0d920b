import fc from 'fast-check'
import t from 'tap'
import { isSessionId } from '../../../src/proxy/session/state/session-id.ts'
import { createSessionId, createTrialId } from '../../../src/rollout/trial-id.ts'

t.test('a trial id is the instance id and a random suffix', async (t) => {
  t.match(createTrialId({ instance_id: 'django__django-1' }), /^django__django-1-[0-9a-f]{16}$/)
  t.not(createTrialId({ instance_id: 'a' }), createTrialId({ instance_id: 'a' }))
  t.match(createTrialId({}), /^trial-[0-9a-f]{16}$/)
})

t.test('each attempt has its own valid session id, for any instance id', async () => {
  fc.assert(
    fc.property(fc.string({ maxLength: 400, unit: 'binary' }), (instanceId) => {
      const trialId = createTrialId({ instance_id: instanceId })
      const ids = [1, 2, 1000].map((attempt) => createSessionId(trialId, attempt))
      return ids.every(isSessionId) && new Set(ids).size === ids.length
    }),
  )
})
