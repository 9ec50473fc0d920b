import { createReadStream } from 'node:fs'
import { splitLines } from '../../base/split-lines.ts'

/** The chunk size of reads; a row may be megabytes long. */
const READ_BYTES = 1024 * 1024

/** Yields the lines of a file. Text after the last line break is omitted. */
export function readCompleteLines(path: string): AsyncGenerator<string> {
  const chunks = createReadStream(path, { encoding: 'utf8', highWaterMark: READ_BYTES })
  return splitLines(chunks, { completeOnly: true })
}
