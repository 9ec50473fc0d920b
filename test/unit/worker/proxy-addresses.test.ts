import t from 'tap'
import { ProxyAddresses } from '../../../src/worker/proxy-addresses.ts'
import { FakeClock } from '../../helpers/fake-clock.ts'

const INTERVAL_MS = 5_000

/** Runs all tasks that wait only for promises. */
const settle = () => new Promise((resolve) => setImmediate(resolve))

/** Creates a name whose addresses a test sets, and a list of the reported changes. */
function setUp(first: readonly string[] | Error) {
  const clock = new FakeClock()
  const changes: string[] = []
  const name = { answer: first, lookups: 0 }
  const addresses = new ProxyAddresses({
    host: 'nodes',
    clock,
    intervalMs: INTERVAL_MS,
    resolve: async () => {
      name.lookups += 1
      if (name.answer instanceof Error) throw name.answer
      return name.answer
    },
    onFound: (address) => changes.push(`+${address}`),
    onGone: (address) => changes.push(`-${address}`),
    onFailed: (error) => changes.push((error as Error).message),
  })
  addresses.start()
  const lookUp = async (response: readonly string[] | Error) => {
    name.answer = response
    clock.advance(INTERVAL_MS)
    await settle()
  }
  return { addresses, clock, changes, name, lookUp }
}

t.test('each address is reported once, and a new one when it appears', async (t) => {
  const { changes, lookUp } = setUp(['10.0.0.1', '10.0.0.2'])
  await settle()
  await lookUp(['10.0.0.2', '10.0.0.1'])
  await lookUp(['10.0.0.1', '10.0.0.2', '10.0.0.3'])
  t.strictSame(changes, ['+10.0.0.1', '+10.0.0.2', '+10.0.0.3'])
})

t.test('an address is gone when two consecutive lookups lack it, and may return', async (t) => {
  const { changes, lookUp } = setUp(['10.0.0.1', '10.0.0.2'])
  await settle()
  changes.length = 0
  await lookUp(['10.0.0.1'])
  await lookUp(['10.0.0.1', '10.0.0.2'])
  await lookUp(['10.0.0.1'])
  t.strictSame(changes, [], 'one lookup without it is ignored')
  await lookUp(['10.0.0.1'])
  t.strictSame(changes, ['-10.0.0.2'])
  await lookUp(['10.0.0.1', '10.0.0.2'])
  t.strictSame(changes, ['-10.0.0.2', '+10.0.0.2'])
})

t.test('a name that cannot be resolved changes nothing, and is reported once', async (t) => {
  const { changes, lookUp } = setUp(new Error('ENOTFOUND'))
  await settle()
  await lookUp(new Error('ENOTFOUND'))
  await lookUp(['10.0.0.1'])
  await lookUp(new Error('SERVFAIL'))
  await lookUp(new Error('SERVFAIL'))
  await lookUp(new Error('SERVFAIL'))
  t.strictSame(changes, ['ENOTFOUND', '+10.0.0.1', 'SERVFAIL'])
})

t.test('a name with addresses of both families is dialled at one only', async (t) => {
  const { changes, lookUp } = setUp(['fd00::1', '10.0.0.1', 'fd00::2', '10.0.0.2'])
  await settle()
  t.strictSame(changes, ['+10.0.0.1', '+10.0.0.2'])
  const six = setUp(['fd00::1'])
  await settle()
  t.strictSame(six.changes, ['+fd00::1'])
  await lookUp(['10.0.0.1', '10.0.0.2'])
})

t.test('a lost connection is followed by a lookup soon, and after the end there is none', async (t) => {
  const { addresses, clock, name } = setUp(['10.0.0.1'])
  await settle()
  addresses.lookSoon()
  addresses.lookSoon()
  clock.advance(500)
  await settle()
  t.equal(name.lookups, 2)
  addresses.stop()
  addresses.lookSoon()
  clock.advance(60_000)
  t.equal(name.lookups, 2)
  t.equal(clock.pending, 0)
})

t.test('connections that are lost at short intervals do not postpone the early lookup', async (t) => {
  const { addresses, clock, name } = setUp(['10.0.0.1'])
  await settle()
  for (const expected of [2, 3]) {
    for (let lost = 0; lost < 5; lost += 1) {
      addresses.lookSoon()
      clock.advance(100)
    }
    await settle()
    t.equal(name.lookups, expected)
  }
})

t.test('a lost connection does not postpone a regular lookup that is due earlier', async (t) => {
  const { addresses, clock, name } = setUp(['10.0.0.1'])
  await settle()
  clock.advance(INTERVAL_MS - 100)
  addresses.lookSoon()
  clock.advance(100)
  await settle()
  t.equal(name.lookups, 2)
})
