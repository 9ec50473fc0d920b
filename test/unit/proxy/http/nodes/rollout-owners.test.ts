import t from 'tap'
import type { Nodes } from '../../../../../src/proxy/http/nodes/nodes.ts'
import { RolloutOwners } from '../../../../../src/proxy/http/nodes/rollout-owners.ts'

/** Creates owners over a database whose claims end when the test resolves them. */
function createOwners() {
  const claims: PromiseWithResolvers<undefined>[] = []
  const released: string[] = []
  const shared = {
    claimRollout() {
      const claim = Promise.withResolvers<undefined>()
      claims.push(claim)
      return claim.promise
    },
    async releaseRollout(rolloutId: string) {
      released.push(rolloutId)
    },
  }
  return { owners: new RolloutOwners({ shared } as unknown as Nodes), claims, released }
}

t.test('the end of an earlier rollout does not release an id that is being claimed', async (t) => {
  const { owners, claims, released } = createOwners()
  const first = owners.claim('a', () => owners.release('a'))
  const second = owners.claim('a', () => 'joined')
  owners.release('a')
  owners.release('b')
  t.strictSame(released, ['b'])
  claims[0]!.resolve(undefined)
  t.strictSame(await first, { started: undefined })
  owners.release('a')
  t.strictSame(released, ['b'], 'the second claim')
  claims[1]!.resolve(undefined)
  t.strictSame(await second, { started: 'joined' })
  owners.release('a')
  t.strictSame(released, ['b', 'a'])
})

t.test('a claim that failed does not prevent a release', async (t) => {
  const { owners, claims, released } = createOwners()
  const claim = owners.claim('a', () => t.fail('it is not started'))
  claims[0]!.reject(new Error('no database'))
  await t.rejects(claim, /no database/)
  owners.release('a')
  t.strictSame(released, ['a'])
})
