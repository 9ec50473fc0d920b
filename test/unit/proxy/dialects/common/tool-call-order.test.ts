import assert from 'node:assert/strict'
import fc from 'fast-check'
import t from 'tap'
import type { ToolCallDelta } from '../../../../../src/protocol/canonical/messages.ts'
import { ToolCallOrder } from '../../../../../src/proxy/dialects/common/tool-call-order.ts'

function orderDeltas(deltas: readonly ToolCallDelta[]): ToolCallDelta[] {
  const order = new ToolCallOrder()
  return [...deltas.flatMap((delta) => order.add(delta)), ...order.end()]
}

/**
 * Returns the concatenated deltas of each tool call, by index, in the order in which the tool calls start.
 */
function mergeToolCalls(deltas: readonly ToolCallDelta[]): Map<number, object> {
  const calls = new Map<number, { id: string; name: string; text: string }>()
  for (const { index, id, function: called } of deltas) {
    const call = calls.get(index) ?? { id: '', name: '', text: '' }
    calls.set(index, {
      id: id ?? call.id,
      name: call.name + (called?.name ?? ''),
      text: call.text + (called?.arguments ?? ''),
    })
  }
  return calls
}

const createDelta = (index: number, text: string): ToolCallDelta => ({ index, function: { arguments: text } })

/** Tool calls in deltas that are interleaved in any order, while each call keeps its own order. */
const interleaved = fc
  .array(fc.tuple(fc.dictionary(fc.string(), fc.jsonValue()), fc.array(fc.nat({ max: 30 })), fc.boolean()), {
    maxLength: 4,
  })
  .map((calls) =>
    calls.map(([value, cuts, isBroken], index) => {
      const json = JSON.stringify(value)
      const text = isBroken ? json.slice(0, -1) : json
      const ends = [...cuts.toSorted((a, b) => a - b), text.length]
      const deltas = ends.map((end, i) => createDelta(index, text.slice(ends[i - 1] ?? 0, end)))
      return [{ index, id: `c${index}`, function: { name: 'f', arguments: '' } }, ...deltas]
    }),
  )
  .chain((calls) => {
    const indexes = calls.flatMap((deltas, index) => deltas.map(() => index))
    return fc.shuffledSubarray(indexes, { minLength: indexes.length }).map((order) => {
      const left = calls.map((deltas) => [...deltas])
      return order.map((index) => left[index]!.shift()!)
    })
  })

t.test('each tool call is complete before the next one starts, and has all its deltas', (t) => {
  fc.assert(
    fc.property(interleaved, (deltas) => {
      const written = orderDeltas(deltas)
      assert.deepEqual([...mergeToolCalls(written)], [...mergeToolCalls(deltas)])
      const started = written.map(({ index }) => index).filter((index, i, all) => index !== all[i - 1])
      assert.equal(new Set(started).size, started.length)
    }),
  )
  t.pass('in any order')
  t.end()
})

t.test('arguments are complete once their object has ended', (t) => {
  const order = new ToolCallOrder()
  t.equal(order.isComplete, false)
  t.same(order.add(createDelta(0, '{')), [createDelta(0, '{')])
  t.equal(order.isComplete, false)
  t.same(order.add(createDelta(0, '}')), [createDelta(0, '}')])
  t.equal(order.isComplete, true)
  order.add(createDelta(1, '{'))
  t.equal(order.isComplete, false)
  t.end()
})

t.test('deltas of consecutive tool calls are written as they arrive', (t) => {
  const order = new ToolCallOrder()
  const deltas = [
    createDelta(0, '{"a":"}'),
    createDelta(0, '\\'),
    createDelta(0, '""}'),
    createDelta(1, '{'),
    createDelta(1, '}'),
    createDelta(2, ''),
  ]
  for (const each of deltas) t.same(order.add(each), [each])
  t.same(order.add(createDelta(3, '{}')), [], 'except while the arguments of another tool call are open')
  t.same(order.add(createDelta(2, '{}')), [createDelta(2, '{}'), createDelta(3, '{}')])
  t.end()
})
