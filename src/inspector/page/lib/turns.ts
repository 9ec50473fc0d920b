import type { TreeTurn } from './wire.ts'

/** A turn that goes on from an earlier one by its messages, or begins like it, and begins a row of its own. */
export function isBroken({ line, parent, message_parent, continues }: TreeTurn): boolean {
  return !continues && line !== 'side' && (parent !== null || message_parent !== null)
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
