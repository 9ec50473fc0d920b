import type { SessionQuery } from '../../../store/port/turn-store.ts'

const PREFIX = 'metadata.'

/** Returns the metadata values that the parameters `metadata.<key>=<value>` of a query require. */
export function parseMetadataFilter(query: object): NonNullable<SessionQuery['metadata']> {
  const parameters = Object.entries(query).filter(([name]) => name.startsWith(PREFIX))
  return Object.fromEntries(parameters.map(([name, text]) => [name.slice(PREFIX.length), parseValue(text)]))
}

/** Parses a value: `3` is a number and `true` a boolean; `"3"` in quotes and all other values are text. */
function parseValue(text: string): string | number | boolean {
  if (!/^(true|false|-?\d+(\.\d+)?([eE][+-]?\d+)?|".*")$/s.test(text)) return text
  try {
    return JSON.parse(text)
  } catch {
    return text
  }
}
