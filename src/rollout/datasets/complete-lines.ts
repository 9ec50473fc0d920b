import { createReadStream } from 'node:fs'

/** Of a file that is read again; a row may be megabytes long. */
const READ_BYTES = 1024 * 1024

/** The lines of a file; what follows the last line break is none. */
export function readCompleteLines(path: string): AsyncGenerator<string> {
  return splitLines(createReadStream(path, { encoding: 'utf8', highWaterMark: READ_BYTES }))
}

/** The same of a text in pieces. */
export async function* splitLines(pieces: AsyncIterable<string>): AsyncGenerator<string> {
  let rest: string[] = []
  for await (const piece of pieces) {
    const [end, ...begun] = piece.split('\n')
    rest.push(end!)
    for (const next of begun) {
      yield rest.join('')
      rest = [next]
    }
  }
}
