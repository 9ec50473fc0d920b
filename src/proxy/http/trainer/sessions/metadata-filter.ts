import type { SessionQuery } from '../../../store/port/turn-store.ts'

const PREFIX = 'metadata.'

/** Returns the metadata that `metadata.<key>=<value>` parameters of a query select. */
export function parseMetadataFilter(query: object): NonNullable<SessionQuery['metadata']> {
  const parameters = Object.entries(query).filter(([name]) => name.startsWith(PREFIX))
  return Object.fromEntries(parameters.map(([name, text]) => [name.slice(PREFIX.length), parseValue(text)]))
}

/** Parses a value: `3` and `true` are a number and a boolean, `"3"` in quotes is text, and so is everything else. */
function parseValue(text: string): string | number | boolean {
  if (!/^(true|false|-?\d+(\.\d+)?([eE][+-]?\d+)?|".*")$/s.test(text)) return text
  try {
    return JSON.parse(text)
  } catch {
    return text
  }
}
