import fc from 'fast-check'
import t from 'tap'
import { PromptPrefixIndex } from '../../../../../../src/proxy/http/trainer/sessions/prompt-prefix-index.ts'
import { toPromptChunks, writePromptJson } from '../../../../../../src/proxy/session/prompts/prompt-chunks.ts'

type Prompt = string | number[]

/** Returns the new part of each prompt, and the earlier prompt that it extends. */
function getNewParts(prompts: Prompt[]): { base: number | null; rest: Prompt }[] {
  const index = new PromptPrefixIndex()
  return prompts.map((prompt, number) => {
    const { turnId, pieces: chunks } = index.add({
      turnId: String(number),
      promptPieces: toPromptChunks(prompt),
    })
    return {
      base: turnId === null ? null : Number(turnId),
      rest: JSON.parse([...writePromptJson(chunks)].join('')),
    }
  })
}

function restorePrompts(parts: ReturnType<typeof getNewParts>): Prompt[] {
  const prompts: Prompt[] = []
  for (const { base, rest } of parts) {
    const before = base === null ? undefined : prompts[base]!
    if (typeof rest === 'string') prompts.push(((before as string | undefined) ?? '') + rest)
    else prompts.push([...((before as number[] | undefined) ?? []), ...rest])
  }
  return prompts
}

t.test('a prompt is shown from the end of the longest earlier prompt that it extends', (t) => {
  t.same(
    getNewParts([[1, 12], [1, 12, 5], [1, 123], [1, 12, 5, 6], [1, 12, 5], [2], 'a', 'ab', 'abc', '', '1']),
    [
      { base: null, rest: [1, 12] },
      { base: 0, rest: [5] },
      { base: null, rest: [1, 123] },
      { base: 1, rest: [6] },
      { base: 1, rest: [] },
      { base: null, rest: [2] },
      { base: null, rest: 'a' },
      { base: 6, rest: 'b' },
      { base: 7, rest: 'c' },
      { base: null, rest: '' },
      { base: null, rest: '1' },
    ],
  )
  t.end()
})

t.test('the prompts of a long conversation are shown once', (t) => {
  const ids: number[] = []
  const prompts = Array.from({ length: 50 }, (_, turn) => {
    for (let index = 0; index < 200; index += 1) ids.push((turn * 7919 + index * 104_729) % 150_000)
    return [...ids]
  })
  const parts = getNewParts(prompts)
  t.ok(parts.every(({ rest }) => rest.length === 200))
  t.same(restorePrompts(parts), prompts)
  t.end()
})

t.test('the parts shown restore each prompt completely, for any shared prefixes', (t) => {
  const step = fc.record({
    from: fc.nat(20),
    keep: fc.nat(1200),
    add: fc.array(fc.constantFrom(1, 12, 123), { maxLength: 600, size: 'max' }),
  })
  const property = fc.property(fc.array(step, { maxLength: 12 }), fc.boolean(), (steps, isText) => {
    const lists: number[][] = []
    for (const { from, keep, add } of steps) lists.push([...(lists[from] ?? [1]).slice(0, keep), ...add])
    const prompts = lists.filter((list) => list.length > 0).map((list) => (isText ? list.join('"') : list))
    return JSON.stringify(restorePrompts(getNewParts(prompts))) === JSON.stringify(prompts)
  })
  fc.assert(property, { numRuns: 100 })
  t.end()
})
