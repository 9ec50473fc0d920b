/** What reads an answer as it comes, on this thread or on another. */
import type { OutputParser } from './output-parser.ts'
import type { ParsedDelta } from './parsed-delta.ts'

export interface AnswerReader {
  /**
   * What each of the texts completed.
   * @param isEnd no more text will come: what was held back comes as one more delta
   */
  read(texts: readonly string[], isEnd: boolean): readonly ParsedDelta[] | Promise<readonly ParsedDelta[]>
  /** Nothing more will be read, for the agent or the engine has left. */
  close(): void
}

/** @param parser of a family */
export function readerOf(parser: OutputParser): AnswerReader {
  return {
    read: (texts, isEnd) => {
      const deltas = texts.map((text) => parser.push(text))
      return isEnd ? [...deltas, parser.finish()] : deltas
    },
    close() {},
  }
}
