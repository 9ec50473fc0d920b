/** Reads the parent of a turn as it was matched by its messages when the request was in flight. */
import type { TurnRecord } from '../../store/port/turn-store.ts'

type TurnAnnotations = Pick<TurnRecord, 'annotations'>

/** The fields of the prompt annotation that determine the parent. */
interface PromptAnnotation {
  reason?: string
  /** Id of the turn whose tokens the prompt begins with. */
  from?: string
  /** Id of the parent if it is not `from`; null: there is no parent. */
  parent?: string | null
  /** The number of tokens at the end of `from` that the prompt replaces. Absent: none. */
  replaced_tokens?: number
}

/**
 * Returns the recorded parent. Matching again could find another one: a turn that was in flight at that time, or one
 * whose equal completion has been continued since.
 * @returns the parent's id; null: the turn has no parent; undefined: the parent is not recorded
 */
export function getRecordedParent(turn: TurnAnnotations): string | null | undefined {
  const { parent, from, reason } = readPromptAnnotation(turn)
  if (parent !== undefined) return parent
  return from ?? (reason === 'first' || reason === 'branched' ? null : undefined)
}

/**
 * Returns the parent if it is not the turn whose tokens the prompt begins with.
 * @returns as {@link getRecordedParent}
 */
export function getDeclaredParent(turn: TurnAnnotations): string | null | undefined {
  return readPromptAnnotation(turn).parent
}

/**
 * Returns the annotation field for a parent that differs from `from`.
 * @param from the turn whose tokens the prompt begins with
 */
export function getParentPart(
  parent: string | undefined,
  from: string | undefined,
): { parent?: string | null } {
  return parent === from ? {} : { parent: parent ?? null }
}

/** Returns the turn whose end the prompt replaces, and the number of these tokens; undefined: the prompt replaces none. */
export function getReplacedEnd(turn: TurnAnnotations): { turnId: string; tokens: number } | undefined {
  // Few turns have it, and parsing all annotations costs more than reading the turns.
  if (!turn.annotations.includes('"replaced_tokens"')) return undefined
  const { from: turnId, replaced_tokens: tokens } = readPromptAnnotation(turn)
  return turnId === undefined || tokens === undefined ? undefined : { turnId, tokens }
}

/** Returns the reason that the prompt annotation records; null: none is recorded. */
export function getPromptReason(turn: TurnAnnotations): string | null {
  return readPromptAnnotation(turn).reason ?? null
}

function readPromptAnnotation({ annotations }: TurnAnnotations): PromptAnnotation {
  // A turn that was never dispatched has no prompt annotation.
  if (!annotations.includes('"prompt"')) return {}
  return (JSON.parse(annotations) as { prompt?: PromptAnnotation | null }).prompt ?? {}
}
