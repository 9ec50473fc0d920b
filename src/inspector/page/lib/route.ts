/** The page's location, stored after the `#`, so that every view has an address. */
import { signal } from '@preact/signals'

interface Route {
  /** Parts of the path, decoded. */
  path: string[]
  query: URLSearchParams
}

export const route = signal<Route>(read())

addEventListener('hashchange', () => {
  route.value = read()
})

function read(): Route {
  const [path = '', query = ''] = location.hash.replace(/^#\/?/, '').split('?')
  return { path: path.split('/').filter(Boolean).map(decode), query: new URLSearchParams(query) }
}

function decode(part: string): string {
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

/** Opens another view at once: a key that arrives before the browser's `hashchange` is handled by the new view. */
export function navigate(to: string): void {
  location.hash = to
  route.value = read()
}

/** Changes the query of this view, without a step in the history. */
export function setQuery(changes: Query): void {
  const query: Query = { ...Object.fromEntries(route.value.query), ...changes }
  history.replaceState(null, '', formatHref(route.value.path, query))
  route.value = read()
}
