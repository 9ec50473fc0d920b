import { crc32 } from 'node:zlib'
import fc from 'fast-check'
import t from 'tap'
import { ProxyError } from '../../../src/base/errors.ts'
import { isOwn, nodeOfSession, parseNode, refuseForeign } from '../../../src/proxy/session/state/nodes.ts'

t.test('a session belongs to one node, the same one wherever it is asked', async (t) => {
  await fc.assert(
    fc.asyncProperty(
      fc.string({ unit: 'binary', minLength: 1 }),
      fc.integer({ min: 1, max: 500 }),
      async (id, of) => {
        const owners = Array.from({ length: of }, (_, i) => ({ number: i + 1, of })).filter((node) =>
          isOwn(id, node),
        )
        t.equal(owners.length, 1)
        t.equal(owners[0]!.number, nodeOfSession(id, of))
      },
    ),
  )
})

t.test('the hash is the one that load balancers compute', async (t) => {
  // Of nginx: (crc32(key) >> 16) & 0x7fff, modulo the weights of all.
  t.equal(crc32('123456789'), 0xcbf43926)
  t.equal(nodeOfSession('123456789', 4), (0x4bf4 % 4) + 1)
  t.equal(nodeOfSession('größe', 7), (((crc32(Buffer.from('größe')) >>> 16) & 0x7fff) % 7) + 1)
})

t.test('sessions are spread evenly', async (t) => {
  const counts = new Map<number, number>()
  for (let i = 0; i < 10_000; i += 1) {
    const node = nodeOfSession(`rollout-${i}`, 4)
    counts.set(node, (counts.get(node) ?? 0) + 1)
  }
  for (const count of counts.values()) t.ok(count > 2_250 && count < 2_750, String(count))
})

t.test('a session of another node is refused by name', async (t) => {
  const node = { number: 1, of: 4 }
  const foreign = ['a', 'b', 'c', 'd', 'e', 'f', 'g', 'h'].find((id) => !isOwn(id, node))!
  const right = `${nodeOfSession(foreign, 4)}/4`
  t.throws(() => refuseForeign(foreign, node), { code: 'wrong_node', status: 421, node: right })
  t.throws(
    () => refuseForeign(foreign, node),
    new RegExp(`${foreign} belongs to node ${right}, and this is 1/4`),
  )
  t.doesNotThrow(() => refuseForeign(foreign, undefined))
})

t.test('a node is named by its number, or by the ordinal of its host', async (t) => {
  t.strictSame(parseNode('2/4', 'host'), { number: 2, of: 4 })
  t.strictSame(parseNode('ordinal/4', 'llm-proxy-0'), { number: 1, of: 4 })
  t.strictSame(parseNode('ordinal/4', 'llm-proxy-3'), { number: 4, of: 4 })
  for (const [text, host] of [
    ['0/4', 'h'],
    ['5/4', 'h'],
    ['1/0', 'h'],
    ['1/40000', 'h'],
    ['x', 'h'],
    ['1', 'h'],
    ['1/4/2', 'h'],
    ['ordinal/4', 'host'],
    ['ordinal/4', 'llm-proxy-4'],
  ] as const) {
    const refused = () => parseNode(text, host)
    t.throws(refused, ProxyError)
    t.throws(refused, { code: 'config_invalid' }, `${text} on ${host}`)
  }
})
