import t from 'tap'
import { CompletionBuilder } from '../../../../src/protocol/canonical/completion.ts'
import { MessageItem } from '../../../../src/proxy/dialects/responses/text-items.ts'

const createExtra = (json: string): Record<string, unknown> => JSON.parse(json)

t.test('differently named fields of many deltas are collected in time linear in their number', async (t) => {
  // A copy of all fields for each delta would take minutes.
  const count = 50_000
  const completion = new CompletionBuilder()
  const item = new MessageItem({ id: 'i', outputIndex: 0 }, false)
  for (let index = 0; index < count; index += 1) {
    const delta = { type: 'delta', extra: { [`field${index}`]: index } } as const
    completion.add(delta)
    item.add(delta)
  }
  t.equal(Object.keys(completion.extra).length, count)
  const done = item.close('completed').at(-1)
  t.match(done, { item: { field0: 0, [`field${count - 1}`]: count - 1 } })
})

t.test('a later value of a field replaces an earlier one, and __proto__ is a field', async (t) => {
  const completion = new CompletionBuilder()
  completion.add({ type: 'delta', extra: createExtra('{"a":1,"b":2,"__proto__":{"c":3}}') })
  const [early] = completion.getEventsSoFar()
  completion.add({ type: 'delta', extra: createExtra('{"a":4,"__proto__":{"c":5}}') })
  t.equal(JSON.stringify(completion.extra), '{"a":4,"b":2,"__proto__":{"c":5}}')
  t.equal(completion.extra.c, undefined)
  t.equal(JSON.stringify(early), '{"type":"delta","extra":{"a":1,"b":2,"__proto__":{"c":3}}}', 'a copy')
})
