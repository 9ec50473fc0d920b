/** Shows the task and the last completion of a session, which are loaded if its row stays visible. */
import { useEffect, useState } from 'preact/hooks'
import { formatSessionPath, getJson, IS_FILE } from '../lib/api.ts'
import { revealInvisible } from '../lib/format.ts'
import type { Preview, Session } from '../lib/wire.ts'

/** The time that a row must stay visible before its preview is loaded. */
const IN_SIGHT_MS = 200

/** The loaded previews by session and time of its last change. */
const previews = new Map<string, Preview>()
/** The number of loaded previews at which all of them are discarded. */
const MAX_PREVIEWS = 2_000

export function PreviewLine({ of: { session_id: id, updated_at: changed } }: { of: Session }) {
  const key = `${changed} ${id}`
  const [read, setRead] = useState<{ key: string; preview: Preview } | undefined>()
  useEffect(() => {
    if (IS_FILE || previews.has(key)) return
    const controller = new AbortController()
    const sendRequest = () =>
      getJson<Preview>(formatSessionPath(id, '/preview'), controller.signal).then(
        (preview) => {
          if (previews.size >= MAX_PREVIEWS) previews.clear()
          previews.set(key, preview)
          setRead({ key, preview })
        },
        () => {},
      )
    const timer = setTimeout(() => void sendRequest(), IN_SIGHT_MS)
    return () => {
      clearTimeout(timer)
      controller.abort()
    }
  }, [key])
  // After a change of the session, its previous preview is shown until the new one is loaded.
  const preview = previews.get(key) ?? read?.preview
  if (preview === undefined) return null
  const text = [preview.task, preview.answer].map((part) => revealInvisible(part ?? '…')).join(' → ')
  return (
    <span class="preview" title={text}>
      {text}
    </span>
  )
}
