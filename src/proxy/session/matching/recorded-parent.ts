/** Reads from a turn's annotations the parent that was found when its request was in flight. */
import type { TurnRecord } from '../../store/port/turn-store.ts'

type TurnAnnotations = Pick<TurnRecord, 'annotations'>

/** The fields of the prompt annotation that determine the parent. */
interface PromptAnnotation {
  reason?: string
  /** The id of the turn with whose tokens the prompt begins. */
  from?: string
  /** The id of the parent if it is not `from`; null: there is no parent. Absent: it is `from`. */
  parent?: string | null
  /** The number of tokens at the end of `from` that the prompt replaces. Absent: 0. */
  replaced_tokens?: number
}

/**
 * Returns the recorded parent. Matching the request again could find another one: a turn that was in flight at that
 * time, or another one among equal completions.
 * @returns the parent's id; null: the turn has no parent; undefined: the parent is not recorded
 */
export function getRecordedParent(turn: TurnAnnotations): string | null | undefined {
  const { parent, from, reason } = readPromptAnnotation(turn)
  if (parent !== undefined) return parent
  return from ?? (reason === 'first' || reason === 'branched' ? null : undefined)
}

/**
 * Returns the parent if it is recorded separately, because the prompt does not begin with its tokens.
 * @returns the parent's id; null: the turn has no parent; undefined: it is not recorded separately
 */
export function getDeclaredParent(turn: TurnAnnotations): string | null | undefined {
  return readPromptAnnotation(turn).parent
}

/**
 * Returns the annotation field for a parent that differs from `from`.
 * @param from the id of the turn with whose tokens the prompt begins
 */
export function getParentPart(
  parent: string | undefined,
  from: string | undefined,
): { parent?: string | null } {
  return parent === from ? {} : { parent: parent ?? null }
}

/** Returns the turn whose last tokens the prompt replaces, and their number; undefined: it replaces none. */
export function getReplacedEnd(turn: TurnAnnotations): { turnId: string; tokens: number } | undefined {
  // Few turns have this field, and parsing the annotations of all turns would take longer than reading the turns.
  if (!turn.annotations.includes('"replaced_tokens"')) return undefined
  const { from: turnId, replaced_tokens: tokens } = readPromptAnnotation(turn)
  return turnId === undefined || tokens === undefined ? undefined : { turnId, tokens }
}

/** Returns the reason in the prompt annotation; null: there is none. */
export function getPromptReason(turn: TurnAnnotations): string | null {
  return readPromptAnnotation(turn).reason ?? null
}

function readPromptAnnotation({ annotations }: TurnAnnotations): PromptAnnotation {
  // A turn that was never dispatched has no prompt annotation.
  if (!annotations.includes('"prompt"')) return {}
  return (JSON.parse(annotations) as { prompt?: PromptAnnotation | null }).prompt ?? {}
}
