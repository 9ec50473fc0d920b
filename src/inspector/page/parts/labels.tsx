/** Shows the labels and the note of a session or turn, which can be edited if a proxy serves the page. */
import { useLayoutEffect, useRef, useState } from 'preact/hooks'
import { formatSessionPath, isReadOnly, patchJson } from '../lib/api.ts'
import { revealInvisible } from '../lib/format.ts'
import type { Session, TurnLabels } from '../lib/wire.ts'
import { Tag } from './parts.tsx'

/** The owner of labels and a note: the session, or a turn by its index. */
export type LabelsTarget = number | 'session'

/** The functions that change the labels and notes of one session. */
export interface LabelsEditor {
  readonly sessionId: string
  /** Opens the form for a target; undefined: closes the form. */
  edit(target: LabelsTarget | undefined): void
  /** Reloads the session after a change. */
  changed(): void
}

interface LabelsProps {
  of: LabelsTarget
  values: TurnLabels
  editor: LabelsEditor
  /** Whether the form is open. */
  edits: boolean
}

export function LabelsView({ edits, ...props }: LabelsProps) {
  const { of, values, editor } = props
  if (edits && !isReadOnly.value) return <LabelsForm {...props} />
  return (
    <span class="labels">
      <Labels of={values.labels} />
      {values.note !== null && <q>{revealInvisible(values.note)}</q>}
      {!isReadOnly.value && (
        <button type="button" class="plain" onClick={() => editor.edit(of)}>
          {values.labels.length > 0 || values.note !== null ? 'change' : 'label'}
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

function LabelsForm({ of, values, editor }: Omit<LabelsProps, 'edits'>) {
  const first = useRef<HTMLInputElement>(null)
  const [labels, setLabels] = useState(values.labels.join(', '))
  const [note, setNote] = useState(values.note ?? '')
  const [error, setError] = useState('')
  useLayoutEffect(() => first.current?.focus(), [])
  const save = async (event?: Event) => {
    event?.preventDefault()
    const set = { labels: parseLabels(labels), note: note.trim() || null }
    try {
      await patchJson(formatSessionPath(editor.sessionId), of === 'session' ? set : { turns: { [of]: set } })
      editor.edit(undefined)
      editor.changed()
    } catch (failure) {
      setError((failure as Error).message)
    }
  }
  const onKeyDown = (event: KeyboardEvent) => {
    if (event.key === 'Enter' && (event.ctrlKey || event.metaKey)) void save(event)
    if (event.key !== 'Escape') return
    event.stopPropagation()
    editor.edit(undefined)
  }
  return (
    <form class="labels-form" onSubmit={(event) => void save(event)} onKeyDown={onKeyDown}>
      <label>
        labels, separated by commas
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
        <button type="button" onClick={() => editor.edit(undefined)}>
          cancel
        </button>
      </p>
    </form>
  )
}

function parseLabels(text: string): string[] {
  return [...new Set(text.split(',').map((label) => label.trim()))].filter((label) => label !== '')
}
