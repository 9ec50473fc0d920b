/** What people say of a session or of one of its turns, once they have read it. Nothing trains by it. */
import { ProxyError } from '../../../base/errors.ts'

export interface Marks {
  labels: string[]
  /** null: there is none. */
  note: string | null
}

export interface SessionMarks extends Marks {
  /** Of turns that have any, by their index. */
  turns: Record<string, Marks>
}

/** What is absent stays as it is. */
export interface MarksChange extends Partial<Marks> {
  turns?: Record<string, Partial<Marks>>
}

/** Of a session with all its turns: they are read wherever it is listed. */
const MAX_CHARS = 256 * 1024

export const NO_MARKS: Readonly<Marks> = { labels: [], note: null }

export function noMarks(): SessionMarks {
  return { ...NO_MARKS, turns: {} }
}

/** @throws ProxyError `invalid_request` for more than a session may hold */
export function changedMarks(
  { turns: marked, ...before }: SessionMarks,
  { turns = {}, ...change }: MarksChange,
): SessionMarks {
  const all = { ...marked }
  for (const [index, ofTurn] of Object.entries(turns)) all[index] = { ...NO_MARKS, ...all[index], ...ofTurn }
  const left = Object.entries(all).filter(([, marks]) => !isEmpty(marks))
  const changed = { ...before, ...change, turns: Object.fromEntries(left) }
  if (JSON.stringify(changed).length <= MAX_CHARS) return changed
  throw new ProxyError('invalid_request', 'Labels and notes of a session may have 256 KiB together')
}

/** Whether the session or one of its turns has the label. */
export function hasLabel(marks: SessionMarks, label: string): boolean {
  return [marks, ...Object.values(marks.turns)].some(({ labels }) => labels.includes(label))
}

export function isUnmarked(marks: SessionMarks): boolean {
  return isEmpty(marks) && Object.keys(marks.turns).length === 0
}

function isEmpty({ labels, note }: Marks): boolean {
  return labels.length === 0 && note === null
}
