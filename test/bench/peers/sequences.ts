/** A sequence that a trainer receives of a session from any of the products. */
export interface Sequence {
  ids: readonly number[]
  /** 1 for trained tokens. */
  mask: readonly number[]
}

interface RecordedRequest {
  prompt: readonly number[]
  completion: readonly number[]
}

/**
 * Merges requests: a prompt that begins with a complete sequence extends it. Trainers merge the records of a gateway in
 * this way.
 */
export function mergeRequests(requests: readonly RecordedRequest[]): Sequence[] {
  const sequences: { ids: number[]; mask: number[] }[] = []
  for (const { prompt, completion } of requests) {
    const extended = sequences.findLast(({ ids }) => ids.every((id, index) => id === prompt[index]))
    const sequence = extended ?? { ids: [], mask: [] }
    if (extended === undefined) sequences.push(sequence)
    const between = prompt.slice(sequence.ids.length)
    sequence.ids.push(...between, ...completion)
    sequence.mask.push(...between.map(() => 0), ...completion.map(() => 1))
  }
  return sequences
}

export interface Totals {
  sequences: number
  /** Sampled tokens that are trained. */
  trained: number
  /** Repetitions of such tokens in further sequences. */
  trainedAgain: number
  /** Tokens that a trainer computes. */
  tokens: number
}

export function getTotals(sequences: readonly Sequence[]): Totals {
  const sum = (of: (sequence: Sequence) => number) => sequences.reduce((all, one) => all + of(one), 0)
  const all = sum(({ mask }) => mask.reduce((count, bit) => count + bit, 0))
  const trainedAgain = sequences.reduce(
    (count, one, index) => count + countShared(one, sequences.slice(0, index)),
    0,
  )
  return {
    ...{ sequences: sequences.length, trained: all - trainedAgain, trainedAgain },
    tokens: sum(({ ids }) => ids.length),
  }
}

/**
 * Counts duplicates.
 * @returns the number of tokens that are trained here and, after the same tokens, in one of the others
 */
function countShared({ ids, mask }: Sequence, others: readonly Sequence[]): number {
  let same = others
  let count = 0
  for (const [index, id] of ids.entries()) {
    same = same.filter((other) => other.ids[index] === id)
    if (mask[index] === 1 && same.some((other) => other.mask[index] === 1)) count += 1
  }
  return count
}
