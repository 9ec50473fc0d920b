import type { TreeTurn } from './wire.ts'

/** Nothing is wrong with these. */
const EXPECTED: ReadonlySet<string> = new Set(['conversation', 'sampled_again'])

/** A turn that begins a row where it could have gone on in another one. */
export function isBroken({ new_row: begins }: TreeTurn): boolean {
  return begins !== null && !EXPECTED.has(begins.why)
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
