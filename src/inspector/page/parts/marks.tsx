/** Labels and notes of a session or turn; they can be edited if the page is served by a proxy. */
import { useLayoutEffect, useRef, useState } from 'preact/hooks'
import { changeJson, formatSessionPath, isReadOnly } from '../lib/api.ts'
import { revealInvisible } from '../lib/format.ts'
import type { Marks, Session } from '../lib/wire.ts'
import { Tag } from './parts.tsx'

/** The owner of labels and a note: the session, or a turn by its index. */
export type MarkTarget = number | 'session'

/** The functions that change the labels and notes of one session. */
export interface Marking {
  readonly sessionId: string
  /** Opens the form; undefined: closes it. */
  edit(what: MarkTarget | undefined): void
  /** Reloads what has changed. */
  changed(): void
}

interface MarksProps {
  of: MarkTarget
  marks: Marks
  marking: Marking
  /** Whether the form is open. */
  edits: boolean
}

export function MarksView({ edits, ...props }: MarksProps) {
  const { of, marks, marking } = props
  if (edits && !isReadOnly.value) return <MarksForm {...props} />
  return (
    <span class="marks">
      <Labels of={marks.labels} />
      {marks.note !== null && <q>{revealInvisible(marks.note)}</q>}
      {!isReadOnly.value && (
        <button type="button" class="plain" onClick={() => marking.edit(of)}>
          {marks.labels.length > 0 || marks.note !== null ? 'change' : 'label'}
        </button>
      )}
    </span>
  )
}

export function Labels({ of }: { of: readonly string[] }) {
  return (
    <>
      {of.map((label) => (
        <Tag key={label} kind="label">
          {revealInvisible(label)}
        </Tag>
      ))}
    </>
  )
}

/** Returns the labels of a session and its turns. */
export function listLabels({ labels, turn_labels: turns }: Session): string[] {
  return [...new Set([labels, ...Object.values(turns).map((turn) => turn.labels)].flat())]
}

function MarksForm({ of, marks, marking }: Omit<MarksProps, 'edits'>) {
  const first = useRef<HTMLInputElement>(null)
  const [labels, setLabels] = useState(marks.labels.join(', '))
  const [note, setNote] = useState(marks.note ?? '')
  const [error, setError] = useState('')
  useLayoutEffect(() => first.current?.focus(), [])
  const save = async (event?: Event) => {
    event?.preventDefault()
    const set = { labels: parseLabels(labels), note: note.trim() || null }
    try {
      await changeJson(
        formatSessionPath(marking.sessionId),
        of === 'session' ? set : { turns: { [of]: set } },
      )
      marking.edit(undefined)
      marking.changed()
    } catch (failure) {
      setError((failure as Error).message)
    }
  }
  const onKeyDown = (event: KeyboardEvent) => {
    if (event.key === 'Enter' && (event.ctrlKey || event.metaKey)) void save(event)
    if (event.key !== 'Escape') return
    event.stopPropagation()
    marking.edit(undefined)
  }
  return (
    <form class="marks-form" onSubmit={(event) => void save(event)} onKeyDown={onKeyDown}>
      <label>
        labels, with commas between them
        <input ref={first} value={labels} onInput={(event) => setLabels(event.currentTarget.value)} />
      </label>
      <label>
        note
        <textarea rows={2} value={note} onInput={(event) => setNote(event.currentTarget.value)} />
      </label>
      {error !== '' && (
        <p class="bad" role="alert">
          {error}
        </p>
      )}
      <p>
        <button type="submit">save</button>{' '}
        <button type="button" onClick={() => marking.edit(undefined)}>
          cancel
        </button>
      </p>
    </form>
  )
}

function parseLabels(text: string): string[] {
  return [...new Set(text.split(',').map((label) => label.trim()))].filter((label) => label !== '')
}
