/**
 * Shares one response between several connections: a retry joins the original attempt while it is in flight. Each
 * reader receives the response from its beginning, at its own pace; the one that is ahead requests more from the
 * engine. The first reader, which is nearly always the only one, receives the original batches.
 */
import type { CompletionBuilder } from '../../../../protocol/canonical/completion.ts'
import type { GenerationEvent, GenerationStream } from '../../../../protocol/canonical/events.ts'

type Batch = readonly GenerationEvent[]

/** A batch that was requested, linked to the next one once that was requested: slower readers keep the list alive. */
interface Piece {
  readonly result: Promise<IteratorResult<Batch>>
  next: Piece | undefined
}

export class ResponseBuffer {
  readonly #events: AsyncIterator<Batch>
  readonly #fold: CompletionBuilder
  readonly #readers = new Set<AnswerShare>()
  #last: Piece = { result: Promise.resolve({ done: false, value: [] }), next: undefined }

  /** @param fold contains all events that `events` has yielded, and no others except possibly the `end` */
  constructor(events: GenerationStream, fold: CompletionBuilder) {
    this.#events = events[Symbol.asyncIterator]()
    this.#fold = fold
  }

  /** Returns the first reader, before anything was read. The last reader to leave early ends the events. */
  read(): GenerationStream {
    return this.#newReader()
  }

  /** Returns a later reader. */
  join(): GenerationStream {
    return this.#joined(this.#newReader())
  }

  async *#joined(reader: AnswerShare): GenerationStream {
    try {
      const at = this.#last
      reader.goTo(at)
      const { done, value } = await at.result
      // There is no await between here and the first yield: the fold is as it was when this batch arrived.
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

/** A reader and its position in the response. */
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
