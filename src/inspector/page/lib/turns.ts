import type { Row, TreeTurn, Turn } from './wire.ts'

type RowTurn = Row['turns'][number]
type EngineRequest = NonNullable<RowTurn['engine_requests']>[number]

/** Returns whether a turn begins a new row although it could have continued another turn. */
export function isRowSplit({ new_row: begins }: TreeTurn): boolean {
  return begins?.split === true
}

/** Returns the kind of an agent role, which all roles `subagent:…` share. */
export function getRoleKind(role: string): string {
  return role.startsWith('subagent') ? 'subagent' : role
}

/** Returns each weight version of the turns once, in order of first use. */
export function listWeightVersions(turns: readonly TreeTurn[]): string[] {
  const versions = turns.flatMap((turn) => [turn.weight_version_start, turn.weight_version_end])
  return [...new Set(versions)].filter((version) => version !== null)
}

/** Returns the engine requests of a turn whose response was continued; an empty list if there was only one. */
export function getEngineRequests({ annotations }: Pick<Turn, 'annotations'>): readonly EngineRequest[] {
  return (annotations.engine_requests as readonly EngineRequest[] | undefined) ?? []
}

/**
 * Returns the engine request that sampled a token; undefined if the turn had only one.
 * @param index the position of the token in the response of the row
 */
export function findEngineRequest(turn: RowTurn | undefined, index: number): EngineRequest | undefined {
  return turn?.engine_requests?.find(({ start, end }) => start <= index && index < end)
}

/** Returns the weight versions of a row's turns and engine requests, each once; null: unknown. */
export function listRowVersions({ turns }: Row): (string | null)[] {
  const versions = turns.flatMap(
    (turn) => turn.engine_requests?.map(({ weight_version }) => weight_version) ?? [turn.weight_version_end],
  )
  return [...new Set(versions)]
}

/** A time span in milliseconds since the epoch. */
export interface Span {
  fromMs: number
  toMs: number
}

/**
 * Returns when a turn began, produced its first token and ended. The first token of a turn without one counts as
 * sampled at its end; an open turn ends at `nowMs`.
 */
export function getTurnTimes(turn: TreeTurn, nowMs: number) {
  const startMs = turn.started_at * 1_000
  const endMs = turn.duration_ms === null ? nowMs : startMs + turn.duration_ms
  const firstMs = turn.first_token_ms === null ? endMs : startMs + turn.first_token_ms
  return { startMs, firstMs, endMs }
}

/** Returns the span from the first request to the end of the last one. */
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
