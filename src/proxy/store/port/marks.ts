/** Labels and notes that people attach to a session or its turns. Training ignores them. */
import { ProxyError } from '../../../base/errors.ts'

/** The labels and the note of a session or of a turn. */
export interface Marks {
  labels: string[]
  /** null: none. */
  note: string | null
}

export interface SessionMarks extends Marks {
  /** The marks of turns by turn index, for turns that have any. */
  turns: Record<string, Marks>
}

/** A change of marks; absent fields stay unchanged. */
export interface MarksChange extends Partial<Marks> {
  turns?: Record<string, Partial<Marks>>
}

/** The limit of a session's marks, those of its turns included. Every list of sessions reads them. */
const MAX_CHARS = 256 * 1024

export const NO_MARKS: Readonly<Marks> = { labels: [], note: null }

export function createNoMarks(): SessionMarks {
  return { ...NO_MARKS, turns: {} }
}

/** Returns the marks after a change. @throws ProxyError `invalid_request` if they exceed the size limit */
export function applyMarks(
  { turns: marked, ...before }: SessionMarks,
  { turns = {}, ...change }: MarksChange,
): SessionMarks {
  const all = { ...marked }
  for (const [index, turnChange] of Object.entries(turns))
    all[index] = { ...NO_MARKS, ...all[index], ...turnChange }
  const left = Object.entries(all).filter(([, marks]) => !isEmpty(marks))
  const changed = { ...before, ...change, turns: Object.fromEntries(left) }
  if (JSON.stringify(changed).length <= MAX_CHARS) return changed
  throw new ProxyError('invalid_request', 'Labels and notes of a session are limited to 256 KiB in total')
}

/** Returns whether the session or one of its turns has the label. */
export function hasLabel(marks: SessionMarks, label: string): boolean {
  return [marks, ...Object.values(marks.turns)].some(({ labels }) => labels.includes(label))
}

export function isUnmarked(marks: SessionMarks): boolean {
  return isEmpty(marks) && Object.keys(marks.turns).length === 0
}

function isEmpty({ labels, note }: Marks): boolean {
  return labels.length === 0 && note === null
}
