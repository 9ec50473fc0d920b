import type { TreeTurn } from './wire.ts'

/** A turn that begins a row where it could have gone on in another one. */
export function isRowSplit({ new_row: begins }: TreeTurn): boolean {
  return begins?.split === true
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

/** Times are milliseconds since the epoch. */
export interface Span {
  fromMs: number
  toMs: number
}

/** When a turn began, gave its first token and ended. One without a token waited all the time; an open one goes on. */
export function getTurnTimes(turn: TreeTurn, nowMs: number) {
  const startMs = turn.started_at * 1_000
  const endMs = turn.duration_ms === null ? nowMs : startMs + turn.duration_ms
  const firstMs = turn.first_token_ms === null ? endMs : startMs + turn.first_token_ms
  return { startMs, firstMs, endMs }
}

/** From the first call to the end of the last. */
export function getTimeSpan(turns: readonly TreeTurn[], nowMs: number): Span {
  let [fromMs, toMs] = [Number.POSITIVE_INFINITY, 0]
  const isOpen = turns.some(({ status }) => status === 'open')
  for (const turn of turns) {
    const { startMs, endMs } = getTurnTimes(turn, isOpen ? nowMs : turn.started_at * 1_000)
    fromMs = Math.min(fromMs, startMs)
    toMs = Math.max(toMs, endMs)
  }
  return turns.length === 0 ? { fromMs: 0, toMs: 0 } : { fromMs, toMs }
}
