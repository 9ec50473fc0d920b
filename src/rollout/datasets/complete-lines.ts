import { createReadStream } from 'node:fs'

/** The chunk size of reads; a row may be megabytes long. */
const READ_BYTES = 1024 * 1024

/** Yields the lines of a file. Text after the last line break is omitted. */
export function readCompleteLines(path: string): AsyncGenerator<string> {
  return splitLines(createReadStream(path, { encoding: 'utf8', highWaterMark: READ_BYTES }))
}

/** Splits chunks of text into lines. Text after the last line break is omitted. */
export async function* splitLines(chunks: AsyncIterable<string>): AsyncGenerator<string> {
  let rest: string[] = []
  for await (const chunk of chunks) {
    const [end, ...begun] = chunk.split('\n')
    rest.push(end!)
    for (const next of begun) {
      yield rest.join('')
      rest = [next]
    }
  }
}
