/** What a trainer gets of a session, whoever recorded it. */
export interface Sequence {
  ids: readonly number[]
  /** 1 on tokens that it trains. */
  mask: readonly number[]
}

export interface RecordedCall {
  prompt: readonly number[]
  completion: readonly number[]
}

/** Calls joined where a prompt begins with all of a sequence, as trainers join those of a gateway that records calls. */
export function mergedCalls(calls: readonly RecordedCall[]): Sequence[] {
  const sequences: { ids: number[]; mask: number[] }[] = []
  for (const { prompt, completion } of calls) {
    const before = sequences.findLast(({ ids }) => ids.every((id, at) => id === prompt[at]))
    const sequence = before ?? { ids: [], mask: [] }
    if (before === undefined) sequences.push(sequence)
    const between = prompt.slice(sequence.ids.length)
    sequence.ids.push(...between, ...completion)
    sequence.mask.push(...between.map(() => 0), ...completion.map(() => 1))
  }
  return sequences
}

export interface Totals {
  sequences: number
  /** Sampled tokens that train. */
  trained: number
  /** How often one of them trains in one sequence more. */
  again: number
  /** What a trainer computes. */
  tokens: number
}

export function totalsOf(sequences: readonly Sequence[]): Totals {
  const sum = (of: (sequence: Sequence) => number) => sequences.reduce((all, one) => all + of(one), 0)
  const all = sum(({ mask }) => mask.reduce((count, bit) => count + bit, 0))
  const again = sequences.reduce((count, one, at) => count + countShared(one, sequences.slice(0, at)), 0)
  return {
    ...{ sequences: sequences.length, trained: all - again, again },
    tokens: sum(({ ids }) => ids.length),
  }
}

/** @returns how many tokens train here and, behind the same tokens, in one of the others */
function countShared({ ids, mask }: Sequence, others: readonly Sequence[]): number {
  let same = others
  let count = 0
  for (const [at, id] of ids.entries()) {
    same = same.filter((other) => other.ids[at] === id)
    if (mask[at] === 1 && same.some((other) => other.mask[at] === 1)) count += 1
  }
  return count
}
