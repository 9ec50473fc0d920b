/**
 * Parses a list of names that a program receives as an option.
 * @param list the names, separated by commas
 * @throws Error if a name is not known, so that a program does not pass because it selected nothing
 */
export function parseNames<Name extends string>(list: string, known: readonly Name[]): Name[] {
  const names = list.split(',')
  const unknown = names.find((name) => !known.includes(name as Name))
  if (unknown !== undefined) throw new Error(`there is no ${unknown}; known are ${known.join(', ')}`)
  return names as Name[]
}
