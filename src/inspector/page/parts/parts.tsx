/** Components that several screens use. */
import type { ComponentChildren } from 'preact'
import { useState } from 'preact/hooks'
import { formatCurl, getBytes, IS_FILE } from '../lib/api.ts'
import { formatNumber, revealInvisible } from '../lib/format.ts'
import type { LoadState } from '../lib/load.ts'

/** Returns the properties of a region that the keyboard can scroll. */
export function getScrollableProps(label: string) {
  return { role: 'region', tabIndex: 0, 'aria-label': label } as const
}

export function Tag({ kind, children }: { kind: string; children: ComponentChildren }) {
  return <span class={`tag ${kind}`}>{children}</span>
}

/** A toggle button. */
export function Chip({
  on,
  onClick,
  children,
}: {
  on: boolean
  onClick(): void
  children: ComponentChildren
}) {
  return (
    <button type="button" class={on ? 'chip on' : 'chip'} aria-pressed={on} onClick={onClick}>
      {children}
    </button>
  )
}

/** A placeholder for missing content. */
export function Empty({ title, children }: { title: string; children?: ComponentChildren }) {
  return (
    <div class="empty">
      <strong>{title}</strong>
      {children && <p>{children}</p>}
    </div>
  )
}

/** Shows a loaded value, or its loading state, or its error. */
export function Await<T>({ of, children }: { of: LoadState<T>; children: (value: T) => ComponentChildren }) {
  if (of.value !== undefined) return <>{children(of.value)}</>
  if (of.error !== undefined) return <Empty title="The data could not be loaded">{of.error.message}</Empty>
  return <div class="empty quiet">Loading …</div>
}

export function Reward({ value }: { value: number | null }) {
  if (value === null) return <span class="quiet">–</span>
  // Only rewards of 1 and more are green, because a small positive reward is not a success.
  return <span class={value >= 1 ? 'good' : value < 0 ? 'bad' : ''}>{formatNumber(value)}</span>
}

/**
 * A bar from zero to a value; it extends to the left if the value is negative.
 * @param range the minimum and maximum of all values of the column
 */
export function Bar({ value, range, kind }: { value: number; range: [number, number]; kind: string }) {
  const [low, high] = [Math.min(0, range[0]), Math.max(0, range[1])]
  const span = high - low || 1
  const from = ((Math.min(0, value) - low) / span) * 100
  return (
    <svg
      class="bar"
      viewBox="0 0 100 10"
      preserveAspectRatio="none"
      role="img"
      aria-label={formatNumber(value)}
    >
      <rect class="track" x="0" y="0" width="100" height="10" />
      <rect
        class={`${kind} ${value < 0 ? 'negative' : ''}`}
        x={from}
        y="0"
        width={Math.max((Math.abs(value) / span) * 100, 0.6)}
        height="10"
      />
    </svg>
  )
}

/** The number of bytes of a response that are shown. The complete response can be read with the curl command. */
const MAX_RAW = 400_000

/** The API paths from which a view was loaded, with buttons for the raw response and a curl command. */
export function Sources({ paths }: { paths: readonly string[] }) {
  const [raw, setRaw] = useState<{ path: string; text: string } | undefined>()
  const [copied, setCopied] = useState('')
  const show = async (path: string) => {
    const bytes = await getBytes(path).catch((error: Error) => new TextEncoder().encode(error.message).buffer)
    const text = new TextDecoder().decode(bytes.slice(0, MAX_RAW))
    setRaw({
      path,
      text: bytes.byteLength > MAX_RAW ? `${text} … (${formatNumber(bytes.byteLength)} bytes)` : indent(text),
    })
  }
  const copy = async (path: string) => {
    await navigator.clipboard.writeText(formatCurl(path)).then(
      () => setCopied(path),
      () => setRaw({ path, text: formatCurl(path) }),
    )
  }
  return (
    <footer class="sources">
      {paths.map((path) => (
        <span key={path}>
          <code>GET /{path}</code>
          <button type="button" onClick={() => void show(path)}>
            raw JSON
          </button>
          {!IS_FILE && (
            <button type="button" onClick={() => void copy(path)}>
              {copied === path ? 'copied' : 'copy curl'}
            </button>
          )}
        </span>
      ))}
      {raw && (
        <div class="overlay" onClick={() => setRaw(undefined)} onKeyDown={() => {}}>
          <section class="dialog wide" onClick={(event) => event.stopPropagation()} onKeyDown={() => {}}>
            <header>
              <code>{raw.path}</code>
              <button type="button" onClick={() => setRaw(undefined)}>
                close
              </button>
            </header>
            <pre>{revealInvisible(raw.text)}</pre>
          </section>
        </div>
      )}
    </footer>
  )
}

function indent(text: string): string {
  try {
    return JSON.stringify(JSON.parse(text), undefined, 2)
  } catch {
    return text
  }
}
