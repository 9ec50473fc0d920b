/** The interface for reading a completion as it arrives, on this thread or on another. */

import type { OutputDelta } from './output-delta.ts'
import type { OutputParser } from './output-parser.ts'

export interface OutputReader {
  /**
   * Returns the output that each of the texts completes.
   * @param isEnd no more text will come; buffered output is returned as one more delta
   */
  read(texts: readonly string[], isEnd: boolean): readonly OutputDelta[] | Promise<readonly OutputDelta[]>
  /** Releases the reader, because the agent or the engine has disconnected. */
  close(): void
}

/** Returns a reader that runs a parser on this thread. */
export function createOutputReader(parser: OutputParser): OutputReader {
  return {
    read: (texts, isEnd) => {
      const deltas = texts.map((text) => parser.push(text))
      return isEnd ? [...deltas, parser.finish()] : deltas
    },
    close() {},
  }
}
