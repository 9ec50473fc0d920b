/**
 * One answer for several connections: a client that tries its call again while the first try still runs joins it. Each
 * reader gets the answer from its beginning, at its own pace; whoever is ahead asks the engine for more. The first
 * reader, which nearly always is the only one, gets the very batches.
 */
import type { CompletionBuilder } from '../../../../protocol/canonical/completion.ts'
import type { GenerationEvent, GenerationStream } from '../../../../protocol/canonical/events.ts'

type Batch = readonly GenerationEvent[]

/** A batch that was asked for, and the one after it once somebody has asked for that: readers behind hold the list. */
interface Piece {
  readonly result: Promise<IteratorResult<Batch>>
  next: Piece | undefined
}

export class SharedAnswer {
  readonly #events: AsyncIterator<Batch>
  readonly #fold: CompletionBuilder
  readonly #readers = new Set<AnswerShare>()
  #last: Piece = { result: Promise.resolve({ done: false, value: [] }), next: undefined }

  /** @param fold holds whatever `events` has yielded, and nothing but an `end` that it has not */
  constructor(events: GenerationStream, fold: CompletionBuilder) {
    this.#events = events[Symbol.asyncIterator]()
    this.#fold = fold
  }

  /** For the first reader, before anything was read. The last one to leave early ends the events. */
  read(): GenerationStream {
    return this.#newReader()
  }

  /** For one that comes later; a reader from now on. */
  join(): GenerationStream {
    return this.#joined(this.#newReader())
  }

  async *#joined(reader: AnswerShare): GenerationStream {
    try {
      const at = this.#last
      reader.goTo(at)
      const { done, value } = await at.result
      // From here to the first yield nothing is awaited: the fold is as it was when this piece came.
      const isWhole = done === true || value.at(-1)?.type === 'end'
      const soFar = this.#fold.soFar().filter(({ type }) => isWhole || type !== 'end')
      if (soFar.length > 0) yield soFar
      if (!isWhole) yield* reader
    } finally {
      await reader.return()
    }
  }

  #newReader(): AnswerShare {
    const leave = async (reader: AnswerShare) => {
      if (this.#readers.delete(reader) && this.#readers.size === 0) await this.#events.return?.()
    }
    const reader = new AnswerShare(this.#last, (piece) => this.#after(piece), leave)
    this.#readers.add(reader)
    return reader
  }

  #after(piece: Piece): Piece {
    piece.next ??= { result: this.#events.next(), next: undefined }
    if (piece === this.#last) this.#last = piece.next
    return piece.next
  }
}

/** One that reads, at its place in the answer. */
class AnswerShare implements AsyncIterableIterator<Batch> {
  #at: Piece
  readonly #after: (piece: Piece) => Piece
  readonly #leave: (reader: AnswerShare) => Promise<void>

  constructor(at: Piece, after: (piece: Piece) => Piece, leave: (reader: AnswerShare) => Promise<void>) {
    this.#at = at
    this.#after = after
    this.#leave = leave
  }

  goTo(piece: Piece): void {
    this.#at = piece
  }

  [Symbol.asyncIterator](): this {
    return this
  }

  next(): Promise<IteratorResult<Batch>> {
    this.#at = this.#after(this.#at)
    return this.#at.result
  }

  async return(): Promise<IteratorResult<Batch>> {
    await this.#leave(this)
    return { done: true, value: undefined }
  }
}
