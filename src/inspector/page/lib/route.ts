/** Reads and writes the location of the page, which is stored after the `#`, so that every view has a URL. */
import { signal } from '@preact/signals'

interface Route {
  /** The decoded segments of the path. */
  path: string[]
  query: URLSearchParams
}

export const route = signal<Route>(readRoute())

addEventListener('hashchange', () => {
  route.value = readRoute()
})

function readRoute(): Route {
  const [path = '', query = ''] = location.hash.replace(/^#\/?/, '').split('?')
  return { path: path.split('/').filter(Boolean).map(decodeSegment), query: new URLSearchParams(query) }
}

function decodeSegment(part: string): string {
  try {
    return decodeURIComponent(part)
  } catch {
    return part
  }
}

type Query = Record<string, string | number | undefined>

export function formatHref(path: readonly (string | number)[], query: Query = {}): string {
  const parameters = new URLSearchParams()
  for (const [name, value] of Object.entries(query)) {
    if (value !== undefined && value !== '') parameters.set(name, String(value))
  }
  const text = parameters.toString()
  return `#/${path.map((part) => encodeURIComponent(part)).join('/')}${text && `?${text}`}`
}

/** Opens another view immediately, so that it handles a key that is pressed before the browser's `hashchange`. */
export function navigate(to: string): void {
  location.hash = to
  route.value = readRoute()
}

/** Changes the query of this view, without adding an entry to the browser's history. */
export function setQuery(changes: Query): void {
  const query: Query = { ...Object.fromEntries(route.value.query), ...changes }
  history.replaceState(null, '', formatHref(route.value.path, query))
  route.value = readRoute()
}
