import type { TreeTurn } from './wire.ts'

/** A turn that begins like an earlier one, and does not go on from its end. */
export function isBroken(turn: TreeTurn): boolean {
  return turn.parent !== null && !turn.continues
}

/** `subagent:…` as one kind. */
export function lineKind(line: string): string {
  return line.startsWith('subagent') ? 'subagent' : line
}
