/** Which turn a call was found to continue, by its messages, when it was live. */
import type { TurnRecord } from '../../store/port/turn-store.ts'

type Annotated = Pick<TurnRecord, 'annotations'>

/** How a prompt came about, as far as it tells the parent. */
interface PromptOnRecord {
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
export function parentOnRecord(turn: Annotated): string | null | undefined {
  const { parent, from, reason } = promptOnRecord(turn)
  if (parent !== undefined) return parent
  return from ?? (reason === 'first' || reason === 'branched' ? null : undefined)
}

/** Only where it is not the turn whose tokens the prompt begins with; otherwise as {@link parentOnRecord}. */
export function statedParent(turn: Annotated): string | null | undefined {
  return promptOnRecord(turn).parent
}

/** @param from the turn whose tokens the prompt begins with */
export function parentPart(parent: string | undefined, from: string | undefined): { parent?: string | null } {
  return parent === from ? {} : { parent: parent ?? null }
}

/** Why the prompt is as it is; null: that is not told. */
export function promptReasonOf(turn: Annotated): string | null {
  return promptOnRecord(turn).reason ?? null
}

function promptOnRecord({ annotations }: Annotated): PromptOnRecord {
  // Of a turn that no engine was asked for there is none.
  if (!annotations.includes('"prompt"')) return {}
  return (JSON.parse(annotations) as { prompt?: PromptOnRecord | null }).prompt ?? {}
}
