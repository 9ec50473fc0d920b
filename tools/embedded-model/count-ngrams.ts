import type { NgramCounts, NgramLevel } from '../../src/embedded/engine/ngram-file.ts'

const MAX_COUNT = 0xffff

/** Counts the sequences of up to `order` tokens within each document; no sequence spans documents. */
export function countNgrams(
  documents: readonly (readonly number[])[],
  vocabularySize: number,
  order: number,
): NgramCounts {
  const unigrams = new Uint32Array(vocabularySize)
  for (const id of documents.flat()) unigrams[id]!++
  const levels = Array.from({ length: order - 1 }, (_, i) => countLevel(documents, i + 1))
  return { order, vocabularySize, unigrams, levels }
}

function countLevel(documents: readonly (readonly number[])[], contextLength: number): NgramLevel {
  const followers = new Map<string, { context: number[]; counts: Map<number, number> }>()
  for (const ids of documents) {
    for (let end = contextLength; end < ids.length; end++) {
      const context = ids.slice(end - contextLength, end)
      const key = context.join(' ')
      const entry = followers.get(key) ?? { context, counts: new Map() }
      entry.counts.set(ids[end]!, (entry.counts.get(ids[end]!) ?? 0) + 1)
      followers.set(key, entry)
    }
  }
  return packLevel([...followers.values()].sort((a, b) => compareIds(a.context, b.context)))
}

function packLevel(followers: readonly { context: number[]; counts: Map<number, number> }[]): NgramLevel {
  const entries = followers.map(({ counts }) => [...counts].sort(([a], [b]) => a - b))
  let end = 0
  return {
    contexts: Uint16Array.from(followers.flatMap(({ context }) => context)),
    ends: Uint32Array.from(entries, (list) => {
      end += list.length
      return end
    }),
    tokens: Uint16Array.from(entries.flatMap((list) => list.map(([token]) => token))),
    counts: Uint16Array.from(entries.flatMap((list) => list.map(([, count]) => Math.min(count, MAX_COUNT)))),
  }
}

function compareIds(a: readonly number[], b: readonly number[]): number {
  for (let i = 0; i < a.length; i++) if (a[i] !== b[i]) return a[i]! - b[i]!
  return 0
}
