/** Which of its classes a token has: the style sheet has a colour for each, in light and in dark. */
import type { ReadRow } from './row-texts.ts'

export type ColourBy = 'logprob' | 'mask' | 'turn' | 'weights'

/** Steps of the scale from likely to unlikely. */
export const STEPS = 10

/** Beyond it all tokens are equally unlikely: 1 in 400. */
const LEAST = -6

/** From 0 (certain) to STEPS - 1. @param logprob of a trained token */
function stepOf(logprob: number): number {
  return Math.min(STEPS - 1, Math.max(0, Math.floor((logprob / LEAST) * STEPS)))
}

/** One class name for each token. Only trained tokens are on the scale of logprobs. */
export function classesOf(read: ReadRow, by: ColourBy): (place: number) => string {
  const { mask, logprobs, turns, row } = read
  switch (by) {
    case 'logprob':
      return (place) => (mask[place] === 1 ? `p${stepOf(logprobs[place]!)}` : 'read')
    case 'mask':
      return (place) => (mask[place] === 1 ? 'trained' : turns[place]! >= 0 ? 'elsewhere' : 'read')
    case 'turn': {
      const order = new Map(row.turns.map(({ index }, position) => [index, position]))
      return (place) => (turns[place]! >= 0 ? `k${order.get(turns[place]!)! % 6}` : 'read')
    }
    case 'weights': {
      const versions = [...new Set(row.turns.map(({ weight_version_end }) => weight_version_end))]
      const ofTurn = new Map(row.turns.map((turn) => [turn.index, versions.indexOf(turn.weight_version_end)]))
      return (place) => (turns[place]! >= 0 ? `k${ofTurn.get(turns[place]!)! % 6}` : 'read')
    }
  }
}
