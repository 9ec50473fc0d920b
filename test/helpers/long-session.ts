import type { TurnRecord } from '../../src/proxy/store/port/turn-store.ts'
import { addMessageTexts } from './messages.ts'
import { DEFAULT_TURN } from './sessions-api.ts'

/** A long session of a store that creates each turn when it is read. */
export class LongSession implements AsyncIterable<TurnRecord> {
  readonly #turnCount: number
  readonly #prompt: Int32Array
  /** The number of turns that were read. */
  readCount = 0
  /** Resolves when a reader stops, early or at the end. */
  readonly readerStopped: Promise<void>
  readonly #leave: () => void

  constructor(turnCount: number, promptTokens: number) {
    this.#turnCount = turnCount
    this.#prompt = Int32Array.from({ length: promptTokens }, (_, index) => 100_000 + (index % 50_000))
    const { promise, resolve } = Promise.withResolvers<void>()
    this.readerStopped = promise
    this.#leave = resolve
  }

  async *[Symbol.asyncIterator](): AsyncGenerator<TurnRecord> {
    try {
      const { requestMessages, ...quiet } = DEFAULT_TURN
      for (let index = 0; index < this.#turnCount; index += 1) {
        this.readCount = index + 1
        yield {
          ...quiet,
          lastMessage: addMessageTexts(requestMessages),
          sessionId: 's',
          turnId: `t${index}`,
          index,
          promptTokenIds: this.#prompt.slice(),
        }
      }
    } finally {
      this.#leave()
    }
  }
}
