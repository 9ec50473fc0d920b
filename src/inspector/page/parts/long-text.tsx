/** Shows texts up to a limit that the user can raise, because browsers need seconds to lay out a line of a megabyte. */
import type { ComponentChildren } from 'preact'
import { useState } from 'preact/hooks'
import type { DiffLine } from '../../../protocol/transcript/diff-lines.ts'
import { formatNumber, revealInvisible } from '../lib/format.ts'
import { Markdown } from './markdown.tsx'

/** The number of characters that are shown initially. */
const MAX_SHOWN = 20_000

export function Long({ text, kind, markdown }: { text: string; kind: string; markdown?: boolean }) {
  return (
    <Cut length={text.length}>
      {(limit) => {
        const shown = text.slice(0, limit)
        return markdown ? <Markdown text={shown} /> : <pre class={kind}>{revealInvisible(shown)}</pre>
      }}
    </Cut>
  )
}

const MARKS = { same: ' ', added: '+', removed: '-', place: '' }

export function Diff({ lines }: { lines: readonly DiffLine[] }) {
  const length = lines.reduce((sum, { text }) => sum + text.length + 2, 0)
  return (
    <Cut length={length}>
      {(limit) => (
        <pre class="diff">
          {limitLines(lines, limit).map(({ kind, text }, index) => (
            <span key={index} class={kind}>
              {MARKS[kind]}
              {revealInvisible(text)}
              {'\n'}
            </span>
          ))}
        </pre>
      )}
    </Cut>
  )
}

function limitLines(lines: readonly DiffLine[], limit: number): DiffLine[] {
  const shown: DiffLine[] = []
  let rest = limit
  for (const { kind, text } of lines) {
    if (rest <= 0) break
    shown.push({ kind, text: text.slice(0, rest) })
    rest -= text.length + 2
  }
  return shown
}

interface CutProps {
  /** The length in characters. */
  length: number
  /** Returns the content up to `limit` characters. */
  children: (limit: number) => ComponentChildren
}

/** Content with a limit, and a button that raises it tenfold. */
function Cut({ length, children }: CutProps) {
  const [limit, setLimit] = useState(MAX_SHOWN)
  return (
    <>
      {children(limit)}
      {length > limit && (
        <button type="button" onClick={() => setLimit((before) => before * 10)}>
          {formatNumber(length - limit)} more characters
        </button>
      )}
    </>
  )
}
