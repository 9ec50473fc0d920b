import type { TreeTurn } from './wire.ts'

/** A turn that begins like an earlier one, and does not go on from its end. */
export function isBroken(turn: TreeTurn): boolean {
  return turn.parent !== null && !turn.continues
}

/** `subagent:…` as one kind. */
export function lineKind(line: string): string {
  return line.startsWith('subagent') ? 'subagent' : line
}

/** The turns' weights, each version once, in the order in which they were first used. */
export function weightVersions(turns: readonly TreeTurn[]): string[] {
  const versions = turns.flatMap((turn) => [turn.weight_version_start, turn.weight_version_end])
  return [...new Set(versions)].filter((version) => version !== null)
}
