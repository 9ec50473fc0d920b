/**
 * Splits chunks of text into lines, at line feeds only: unlike Node.js's readline, it does not split at U+2028 and
 * U+2029, which JSON permits in strings. A carriage return before the line feed stays in the line; it is whitespace in
 * JSON.
 * @param completeOnly whether text after the last line feed is omitted, because it may be a part of a line
 */
export async function* splitLines(
  chunks: AsyncIterable<string>,
  { completeOnly = false } = {},
): AsyncGenerator<string> {
  let rest: string[] = []
  for await (const chunk of chunks) {
    const [end, ...begun] = chunk.split('\n')
    rest.push(end!)
    for (const next of begun) {
      yield rest.join('')
      rest = [next]
    }
  }
  const last = rest.join('')
  if (!completeOnly && last !== '') yield last
}
