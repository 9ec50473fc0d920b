import fc from 'fast-check'
import t from 'tap'
import { PromptIds } from '../../../../src/protocol/token-ids/prompt-ids.ts'
import { PromptLists } from '../../../../src/protocol/token-ids/prompt-lists.ts'
import { readIds } from '../../../../src/protocol/token-ids/token-ids-json.ts'
import { limitRuns } from '../../../helpers/tier.ts'

/** A list that is long enough to be stored. */
const LONG = Array.from({ length: 2_000 }, (_, index) => (index * 7919) % 200_000)

/** Reads a list as a part of a response, with bytes before and after it. */
function read(lists: PromptLists, list: string): PromptIds | undefined {
  const bytes = Buffer.from(`[${list}]`)
  return lists.read(bytes, 1, bytes.length - 1)
}

function write(lists: PromptLists, ids: PromptIds): string {
  return Buffer.concat([...lists.write(ids)]).toString()
}

t.test('only the new part of a prompt that extends an earlier one is read', (t) => {
  const lists = new PromptLists()
  const first = read(lists, LONG.join())!
  t.strictSame([...first], LONG)
  const converted = lists.converted
  const second = read(lists, [...LONG, 1, 22].join())!
  t.strictSame([...second], [...LONG, 1, 22])
  t.match({ ...second }, { base: first, shared: 2_000, rest: { length: 2 } })
  t.strictSame([...read(lists, [...LONG, 1, 22].join())!], [...LONG, 1, 22], 'the same again')
  t.equal(lists.converted, converted + 2)
  t.end()
})

t.test(
  'a list that an engine returns unchanged is not parsed, and is another prompt than the sent one',
  (t) => {
    const lists = new PromptLists()
    const ids = [...LONG, ...LONG]
    const first = new PromptIds(Int32Array.from(ids))
    const list = write(lists, first)
    let { converted } = lists
    first.completion = Int32Array.of(5, 6)
    const echo = read(lists, list)!
    t.strictSame([...echo], ids)
    t.equal(lists.converted, converted)
    echo.completion = Int32Array.of(4)
    t.strictSame([...first.completion], [5, 6], 'a continuation of the echo belongs to the echo')
    const longer = write(lists, new PromptIds(Int32Array.of(7, 8, 9), first, 4_002))
    converted = lists.converted
    const longerEcho = read(lists, longer)!
    t.strictSame([...longerEcho], [...ids, 5, 6, 7, 8, 9])
    t.equal(lists.converted, converted)
    for (const [index, id] of [
      [0, 1],
      [3_999, 123],
      [4_003, 3],
    ] as const) {
      const other = [...longerEcho].with(index, id)
      t.strictSame([...read(lists, other.join())!], other)
    }
    t.end()
  },
)

t.test('sampled tokens are not stored again with the prompt that extends them', (t) => {
  const lists = new PromptLists()
  const first = read(lists, LONG.join())!
  first.completion = Int32Array.of(5, 6)
  t.match({ ...read(lists, [...LONG, 5, 6, 7].join())! }, { base: first, shared: 2_002, rest: { length: 1 } })
  t.match({ ...read(lists, [...LONG, 5, 9, 7].join())! }, { base: first, shared: 2_001, rest: { length: 2 } })
  t.end()
})

t.test('alternating prompts of several conversations each extend their own', (t) => {
  const lists = new PromptLists()
  const conversations = [LONG, LONG.with(900, 1), LONG.with(1, 3)]
  for (const ids of conversations) read(lists, ids.join())
  const converted = lists.converted
  for (const ids of conversations) t.strictSame([...read(lists, [...ids, 4].join())!], [...ids, 4])
  t.equal(lists.converted, converted + conversations.length)
  t.end()
})

t.test('the shared part of a prompt that branches is not read again', (t) => {
  const lists = new PromptLists()
  const first = read(lists, LONG.join())!
  const converted = lists.converted
  const branch = read(lists, LONG.with(1_500, 1).join())!
  t.strictSame([...branch], LONG.with(1_500, 1))
  t.match({ ...branch }, { base: first, shared: 1_500 })
  t.equal(lists.converted, converted + 500)
  t.end()
})

t.test('a part of the shared prefix may be read again for a long prompt that branches early', (t) => {
  const lists = new PromptLists()
  const long = Array.from({ length: 60_000 }, (_, index) => (index * 7919) % 200_000)
  read(lists, long.join())
  for (const index of [700, 20_000, 59_990]) {
    const converted = lists.converted
    t.strictSame([...read(lists, long.with(index, 1).join())!], long.with(index, 1))
    const second = lists.converted - converted - (long.length - index)
    t.ok(second >= 0 && second < 5_000, `${second} ids`)
  }
  t.end()
})

t.test('a different prompt is read in full', (t) => {
  const others: number[][] = [
    LONG.with(0, 5),
    LONG.with(-1, LONG.at(-1)! + 1),
    LONG.slice(0, -1),
    // The same bytes, followed by further digits of the last id.
    LONG.with(-1, LONG.at(-1)! * 10),
  ]
  for (const other of others) {
    const lists = new PromptLists()
    read(lists, LONG.join())
    t.strictSame([...read(lists, other.join())!], other)
  }
  t.end()
})

t.test('the continuation of a known prefix must be ids too', (t) => {
  const lists = new PromptLists()
  read(lists, LONG.join())
  for (const rest of [',', ',x', ', 1', ',1,', ',-1', ',01']) {
    t.equal(read(lists, `${LONG.join()}${rest}`), undefined, rest)
  }
  t.end()
})

t.test('after any earlier lists, lists are read and written as if they were the first', (t) => {
  const step = fc.record({
    from: fc.nat(10),
    keep: fc.nat(2_100),
    more: fc.array(fc.oneof(fc.nat(2_000), fc.constantFrom(0, 9, 10, 2 ** 31 - 1, -1)), { maxLength: 5 }),
    broken: fc.constantFrom('', '', '', ',', '0', ' '),
    how: fc.constantFrom('read', 'write', 'continue'),
    completion: fc.array(fc.nat(2_000), { maxLength: 3 }),
  })
  fc.assert(
    fc.property(fc.array(step, { maxLength: 14 }), (steps) => {
      const lists = new PromptLists()
      const known = [new PromptIds(Int32Array.from(LONG))]
      for (const { from, keep, more, broken, how, completion } of steps) {
        const earlier = known[from % known.length]!
        const ids =
          how === 'continue'
            ? [...earlier, ...earlier.completion, ...more]
            : [...[...earlier].slice(0, keep), ...more]
        let prompt = how === 'continue' ? earlier.createContinuation(more) : PromptIds.from(ids)
        if (how === 'read') {
          const bytes = Buffer.from(`${ids.join()}${broken}`)
          const plain = readIds(bytes, 0, bytes.length)
          const got = lists.read(bytes, 0, bytes.length)
          if (String(got && [...got]) !== String(plain && [...plain])) return false
          prompt = got ?? prompt
        } else if (write(lists, prompt) !== ids.join()) return false
        if (prompt.completion.length === 0) prompt.completion = Int32Array.from(completion)
        known.push(prompt)
      }
      return true
    }),
    { numRuns: limitRuns(200) },
  )
  t.equal(write(new PromptLists(), PromptIds.of()), '')
  t.end()
})

t.test('the memory of a session grows by the additions of its prompts', (t) => {
  const lists = new PromptLists()
  let ids = LONG
  for (let turn = 0; turn < 200; turn += 1) {
    ids = [...ids, ...Array.from({ length: 20 }, (_, index) => 1_000 + index)]
    read(lists, ids.join())
  }
  t.ok(lists.bytes < 2 * ids.join().length, `${lists.bytes} bytes`)
  const long = Array.from({ length: 100_000 }, (_, index) => index)
  read(lists, long.join())
  t.ok(lists.bytes < long.length, `${lists.bytes} bytes of 100,000 ids`)
  t.equal(lists.idBytes, 4 * (ids.length + long.length))
  read(lists, long.with(50, 1).join())
  read(lists, [...long, 1].join())
  t.equal(lists.idBytes, 4 * (ids.length + 2 * long.length + 1))
  t.end()
})
