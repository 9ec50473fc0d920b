import fc from 'fast-check'
import t from 'tap'
import {
  createNodeSecret,
  NODE_HEADER,
  NodeIdentity,
} from '../../../../../src/proxy/http/nodes/node-identity.ts'
import { createFakeNodeCoordination } from '../../../../helpers/fake-node-coordination.ts'

const SECRET = createNodeSecret()

function createNode(lease: number | undefined, ...secrets: string[]): NodeIdentity {
  const identity = new NodeIdentity(createFakeNodeCoordination({ lease }))
  identity.setSecrets(secrets)
  return identity
}

const withHeader = (header: string) => ({ headers: { [NODE_HEADER]: header } })

t.test('a node verifies a signature that another one made for it', async (t) => {
  const sender = createNode(1, SECRET)
  const signed = sender.sign(2)!
  t.strictSame(createNode(2, SECRET).verify(withHeader(signed.header)), { from: 1, id: signed.id })
  t.not(sender.sign(2)!.id, signed.id, 'each message has its own id')
  t.equal(createNode(3, SECRET).verify(withHeader(signed.header)), undefined, 'not one for a third node')
  t.equal(
    createNode(2, createNodeSecret()).verify(withHeader(signed.header)),
    undefined,
    'nor one of another secret',
  )
  t.equal(createNode(2).verify(withHeader(signed.header)), undefined, 'nor without a secret')
  t.equal(createNode(undefined, SECRET).verify(withHeader(signed.header)), undefined, 'nor without a lease')
  t.equal(createNode(2, SECRET).verify({ headers: {} }), undefined)
})

t.test('the first secret signs, and all of them verify', async (t) => {
  const [old, next] = [SECRET, createNodeSecret()]
  const steps = [[old], [old, next], [next, old], [next]]
  for (const [index, signing] of steps.entries()) {
    for (const verifying of steps.slice(Math.max(0, index - 1), index + 2)) {
      const { header } = createNode(1, ...signing).sign(2)!
      t.ok(
        createNode(2, ...verifying).verify(withHeader(header)),
        'nodes one step of the rotation apart accept each other',
      )
    }
  }
  const { header } = createNode(1, old).sign(2)!
  t.notOk(createNode(2, next).verify(withHeader(header)), 'a removed secret is invalid')
})

t.test('a node without a lease or a secret does not sign', async (t) => {
  t.equal(createNode(undefined, SECRET).sign(2), undefined)
  t.equal(createNode(1).sign(2), undefined)
})

t.test('a value that is not a list of secrets changes nothing', async (t) => {
  const identity = createNode(1, SECRET)
  for (const value of [null, undefined, [], ['', SECRET], [1], 'secret', { 0: SECRET }]) {
    identity.setSecrets(value)
    t.strictSame(identity.secrets, [SECRET])
  }
})

t.test('no other text than a signature is accepted, with any one character changed', async () => {
  const verifier = createNode(2, SECRET)
  const { header } = createNode(1, SECRET).sign(2)!
  fc.assert(
    fc.property(fc.nat(header.length - 1), fc.string({ minLength: 0, maxLength: 2 }), (index, change) => {
      const changed = header.slice(0, index) + change + header.slice(index + 1)
      return changed === header || verifier.verify(withHeader(changed)) === undefined
    }),
  )
  fc.assert(fc.property(fc.string(), (text) => verifier.verify(withHeader(text)) === undefined))
})
