/** Maps tokens to CSS classes. The style sheet has a colour for each class, in light and in dark mode. */
import type { RowData } from './row-texts.ts'
import { findEngineRequest, listRowVersions } from './turns.ts'

/** The property that determines a token's colour; a value that is not listed is the name of an added tensor. */
export type ColourProperty = 'logprob' | 'mask' | 'turn' | 'weights' | (string & {})

/** The number of steps of the scale from likely to unlikely. */
export const STEPS = 10

/** The logprob at and below which all tokens are in the last step: a probability of 1 in 400. */
const LEAST = -6

/** Returns the step of a logprob, from 0 (certain) to STEPS - 1. */
function getColourStep(logprob: number): number {
  return Math.min(STEPS - 1, Math.max(0, Math.floor((logprob / LEAST) * STEPS)))
}

/** Returns the minimum and maximum of the numbers; undefined if all are NaN. */
export function findRange(numbers: Float32Array): { least: number; most: number } | undefined {
  let [least, most] = [Number.POSITIVE_INFINITY, Number.NEGATIVE_INFINITY]
  for (const value of numbers) {
    if (value < least) least = value
    if (value > most) most = value
  }
  return most < least ? undefined : { least, most }
}

/**
 * Returns a function that maps a token to the class of its number: the maximum has the first step, the minimum the
 * last.
 */
function createNumberClassGetter(numbers: Float32Array): (index: number) => string {
  const { least, most } = findRange(numbers) ?? { least: 0, most: 0 }
  const step = (value: number) =>
    most === least ? 0 : Math.round(((most - value) / (most - least)) * (STEPS - 1))
  return (index) => (Number.isNaN(numbers[index]) ? 'read' : `p${step(numbers[index]!)}`)
}

/** Returns a function that maps a token to its class. Only trained tokens are on the scale of logprobs. */
export function createClassGetter(read: RowData, by: ColourProperty): (index: number) => string {
  const { mask, logprobs, turns, row, added } = read
  const numbers = added.get(by)
  if (numbers !== undefined) return createNumberClassGetter(numbers)
  switch (by) {
    case 'logprob':
      return (index) => (mask[index] === 1 ? `p${getColourStep(logprobs[index]!)}` : 'read')
    case 'mask':
      return (index) => (mask[index] === 1 ? 'trained' : turns[index]! >= 0 ? 'elsewhere' : 'read')
    case 'turn': {
      const order = new Map(row.turns.map(({ index }, position) => [index, position]))
      return (index) => (turns[index]! >= 0 ? `k${order.get(turns[index]!)! % 6}` : 'read')
    }
    case 'weights': {
      const colours = new Map(listRowVersions(row).map((version, order) => [version, `k${order % 6}`]))
      const byIndex = new Map(row.turns.map((turn) => [turn.index, turn]))
      return (index) => {
        const turn = byIndex.get(turns[index]!)
        if (turn === undefined) return 'read'
        const sampledBy = findEngineRequest(turn, index - row.prompt_tokens)
        return colours.get(sampledBy ? sampledBy.weight_version : turn.weight_version_end) ?? 'read'
      }
    }
    default:
      return () => 'read'
  }
}
