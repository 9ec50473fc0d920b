/** Which turn a call was found to continue, by its messages, when it was live. */
import type { TurnRecord } from '../../store/port/turn-store.ts'

type TurnAnnotations = Pick<TurnRecord, 'annotations'>

/** How a prompt came about, as far as it tells the parent. */
interface PromptAnnotation {
  reason?: string
  /** The turn whose tokens the prompt begins with. */
  from?: string
  /** The parent, where it is not that one; null: there is none. */
  parent?: string | null
}

/**
 * To be asked rather than matched anew: that could find another one, which was still under way then, or one whose equal
 * answer was continued since.
 * @returns its id; null: it continues none; undefined: the record does not tell
 */
export function getRecordedParent(turn: TurnAnnotations): string | null | undefined {
  const { parent, from, reason } = readPromptAnnotation(turn)
  if (parent !== undefined) return parent
  return from ?? (reason === 'first' || reason === 'branched' ? null : undefined)
}

/** Only where it is not the turn whose tokens the prompt begins with; otherwise as {@link getRecordedParent}. */
export function getDeclaredParent(turn: TurnAnnotations): string | null | undefined {
  return readPromptAnnotation(turn).parent
}

/** @param from the turn whose tokens the prompt begins with */
export function parentPart(parent: string | undefined, from: string | undefined): { parent?: string | null } {
  return parent === from ? {} : { parent: parent ?? null }
}

/** Why the prompt is as it is; null: that is not told. */
export function getPromptReason(turn: TurnAnnotations): string | null {
  return readPromptAnnotation(turn).reason ?? null
}

function readPromptAnnotation({ annotations }: TurnAnnotations): PromptAnnotation {
  // Of a turn that no engine was asked for there is none.
  if (!annotations.includes('"prompt"')) return {}
  return (JSON.parse(annotations) as { prompt?: PromptAnnotation | null }).prompt ?? {}
}
