/** What reads an answer as it comes, on this thread or on another. */

import type { OutputDelta } from './output-delta.ts'
import type { OutputParser } from './output-parser.ts'

export interface OutputReader {
  /**
   * What each of the texts completed.
   * @param isEnd no more text will come: what was held back comes as one more delta
   */
  read(texts: readonly string[], isEnd: boolean): readonly OutputDelta[] | Promise<readonly OutputDelta[]>
  /** Nothing more will be read, for the agent or the engine has left. */
  close(): void
}

/** @param parser of a family */
export function createAnswerReader(parser: OutputParser): OutputReader {
  return {
    read: (texts, isEnd) => {
      const deltas = texts.map((text) => parser.push(text))
      return isEnd ? [...deltas, parser.finish()] : deltas
    },
    close() {},
  }
}
