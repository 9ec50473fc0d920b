/** The interface for parsing a completion as it arrives, on this thread or on another one. */

import type { OutputDelta } from './output-delta.ts'
import type { OutputParser } from './output-parser.ts'

/** A parser of one completion. */
export interface OutputReader {
  /**
   * Adds texts, and returns the output that is complete with each of them.
   * @param isEnd whether the completion has ended; buffered output is then returned as one more delta
   */
  read(texts: readonly string[], isEnd: boolean): readonly OutputDelta[] | Promise<readonly OutputDelta[]>
  /** Releases the reader of a completion that will not end, because the agent or the engine has disconnected. */
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
