import fc from 'fast-check'
import t from 'tap'
import { PromptIds } from '../../../../src/protocol/token-ids/prompt-ids.ts'

function withCompletion(prompt: PromptIds, ...completion: number[]): PromptIds {
  prompt.completion = Int32Array.from(completion)
  return prompt
}

t.test('a prompt that extends another one keeps only its addition', (t) => {
  const first = withCompletion(PromptIds.of(1, 2), 3)
  const second = first.createContinuation([4], [5])
  t.strictSame([...second], [1, 2, 3, 4, 5])
  t.strictSame([...second.rest], [4, 5])
  t.ok(second.rebaseOn(first))
  t.notOk(PromptIds.of(1, 2, 9).rebaseOn(first))
  t.notOk(PromptIds.of(1, 2).rebaseOn(first), 'a shorter prompt lacks a part of the base')
  t.end()
})

t.test('a prompt that arrived complete keeps only its addition once its predecessor is known', (t) => {
  const first = withCompletion(PromptIds.of(1, 2), 3)
  const second = PromptIds.of(1, 2, 3, 4)
  t.ok(second.rebaseOn(first))
  t.match({ ...second }, { base: first, shared: 3 })
  t.strictSame([...second.rest], [4])
  t.strictSame([...second], [1, 2, 3, 4])
  const other = PromptIds.of(1, 7, 8)
  t.notOk(other.rebaseOn(first))
  t.match({ ...other }, { base: first, shared: 1 })
  t.strictSame([...other], [1, 7, 8])
  t.end()
})

t.test('a prompt that shares nothing is read without a copy', (t) => {
  const prompt = PromptIds.of(1, 2)
  t.equal(prompt.toArray(), prompt.rest)
  const second = withCompletion(prompt, 3).createContinuation([4])
  t.strictSame(second.toArray(), Int32Array.of(1, 2, 3, 4))
  t.end()
})

t.test('a prompt that is not shared does not stay in memory because of another one', (t) => {
  const first = PromptIds.of(1, 2, 3)
  const second = new PromptIds(Int32Array.of(4), first, 3)
  const third = new PromptIds(Int32Array.of(9), second, 2)
  t.equal(third.base, first)
  t.equal(new PromptIds(Int32Array.of(9), second, 0).base, undefined)
  t.throws(() => new PromptIds(Int32Array.of(9), second, 5), RangeError)
  t.end()
})

t.test('prompts built in any way read as lists of ids do', (t) => {
  const id = fc.nat(2)
  const step = fc.record({
    from: fc.nat(20),
    keep: fc.nat(12),
    more: fc.array(id, { maxLength: 4 }),
    completion: fc.array(id, { maxLength: 3 }),
    how: fc.constantFrom('shared', 'complete', 'continued'),
    against: fc.nat(20),
  })
  fc.assert(
    fc.property(fc.array(step, { minLength: 1, maxLength: 20 }), (steps) => {
      const known = [{ prompt: PromptIds.of(1, 2), ids: [1, 2], tokens: [1, 2] }]
      for (const { from, keep, more, completion, how, against } of steps) {
        const base = known[from % known.length]!
        const shared = how === 'continued' ? base.tokens.length : Math.min(keep, base.tokens.length)
        const ids = [...base.tokens.slice(0, shared), ...more]
        const prompt =
          how === 'complete' ? PromptIds.from(ids) : new PromptIds(Int32Array.from(more), base.prompt, shared)
        const other = known[against % known.length]!
        const sharedLength = countShared(other.tokens, ids)
        if (other.prompt.countShared(prompt) !== sharedLength) return false
        if (prompt.rebaseOn(other.prompt) !== (sharedLength === other.tokens.length)) return false
        if (prompt.equals(other.prompt) !== (`${ids}` === `${other.ids}`)) return false
        prompt.completion = Int32Array.from(completion)
        known.push({ prompt, ids, tokens: [...ids, ...completion] })
      }
      return known.every(
        ({ prompt, ids, tokens }) =>
          `${[...prompt]}` === `${ids}` && `${prompt.slice(1, tokens.length)}` === `${tokens.slice(1)}`,
      )
    }),
    { numRuns: 500 },
  )
  t.end()
})

t.test('a session of many turns keeps its tokens once', (t) => {
  let prompt = PromptIds.from(Array.from({ length: 1_000 }, (_, index) => index))
  let bytes = 0
  for (let turn = 0; turn < 500; turn += 1) {
    prompt.completion = Int32Array.of(turn, turn, turn)
    bytes += prompt.bytes
    prompt = prompt.createContinuation([turn])
  }
  t.equal(bytes + prompt.bytes, prompt.length * Int32Array.BYTES_PER_ELEMENT)
  t.end()
})

function countShared(left: readonly number[], right: readonly number[]): number {
  const end = Math.min(left.length, right.length)
  let count = 0
  while (count < end && left[count] === right[count]) count += 1
  return count
}
