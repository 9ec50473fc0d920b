/**
 * Reads a text that arrives in parts, once, from beginning to end. Grammars are generators: they yield when they need
 * text that has not arrived, and continue at the same position when it has.
 *
 * The reader stores only unread text, so that text is not copied again when more arrives.
 */
import { MarkerSearch, type MarkerSet } from '../tokenizer/markers.ts'

/** A step of a grammar, which yields when it needs more text. */
export type GrammarStep<T> = Generator<void, T, void>

/** A reader of one value, which may continue in the next part of the text. */
export interface Scanner {
  /** Reads `text` from index `from`. @returns the index after the value's last character */
  read(text: string, from: number): number
  /** Whether the value may continue. */
  readonly isOpen: boolean
}

/** A reader for a text that arrives in parts. Its generators are the primitives of grammars. */
export class TextReader {
  #ahead = ''
  #at = 0
  #isEnded = false
  #record = ''
  #isRecording = false

  /** Adds a part of the text. */
  push(text: string): void {
    this.#ahead = this.#at === this.#ahead.length ? text : this.#ahead.slice(this.#at) + text
    this.#at = 0
  }

  /** Marks the end of the text. */
  end(): void {
    this.#isEnded = true
  }

  /** Starts recording the text that is read, and discards an earlier record. */
  startRecord(): void {
    this.#record = ''
    this.#isRecording = true
  }

  /** Stops recording. @returns the text that was read since {@link startRecord} */
  stopRecord(): string {
    this.#isRecording = false
    return this.#record
  }

  /** Returns to the position before `text`, which must be the text that was read last. */
  putBack(text: string): void {
    if (text.length <= this.#at) {
      this.#at -= text.length
    } else {
      this.#ahead = text + this.#ahead.slice(this.#at)
      this.#at = 0
    }
  }

  /** Returns whether all text has been read and no more will arrive. */
  *atEnd(): GrammarStep<boolean> {
    while (this.#at === this.#ahead.length && !this.#isEnded) yield
    return this.#at === this.#ahead.length
  }

  /** Returns the next character without reading it; an empty string at the end. */
  *peek(): GrammarStep<string> {
    return (yield* this.atEnd()) ? '' : this.#ahead[this.#at]!
  }

  /** Reads white space. */
  *space(): GrammarStep<string> {
    return yield* this.scan(new RunScanner(/\s*/y))
  }

  /**
   * Reads and returns the one of `literals` with which the text continues; undefined if it continues with none. No
   * literal may be a prefix of another one.
   */
  *oneOf(literals: readonly string[]): GrammarStep<string | undefined> {
    for (;;) {
      const found = literals.find((literal) => this.#ahead.startsWith(literal, this.#at))
      if (found !== undefined) {
        this.#take(this.#at + found.length)
        return found
      }
      if (this.#isEnded || !literals.some((literal) => this.#mayBecome(literal))) return undefined
      yield
    }
  }

  /** Reads `literal` if it comes next. @returns whether it did */
  *literal(literal: string): GrammarStep<boolean> {
    return (yield* this.oneOf([literal])) !== undefined
  }

  /**
   * Reads up to the end of the first marker, or to the end of the text.
   * @param onText receives the text before the marker as it arrives; by default, the text is returned
   */
  *upTo(markers: MarkerSet, onText?: (text: string) => void): GrammarStep<{ text: string; marker?: string }> {
    const search = new MarkerSearch(markers)
    let text = ''
    const gather = (more: string) => {
      text += more
    }
    const pass = onText ?? gather
    for (let searched = this.#at; ; searched = this.#at + search.pendingLength) {
      const match = search.read(this.#ahead, searched)
      if (match !== undefined) {
        pass(this.#take(match.end - match.marker.length))
        this.#take(match.end)
        return { text, marker: match.marker }
      }
      pass(this.#take(this.#isEnded ? this.#ahead.length : this.#ahead.length - search.pendingLength))
      if (this.#isEnded) return { text }
      yield
    }
  }

  /** Reads and returns the text that `scanner` accepts. */
  *scan(scanner: Scanner): GrammarStep<string> {
    let text = ''
    while (scanner.isOpen && !(yield* this.atEnd())) {
      text += this.#take(scanner.read(this.#ahead, this.#at))
    }
    return text
  }

  #mayBecome(literal: string): boolean {
    return literal.startsWith(this.#ahead.slice(this.#at, this.#at + literal.length))
  }

  #take(end: number): string {
    const taken = this.#ahead.slice(this.#at, end)
    this.#at = end
    if (this.#isRecording) this.#record += taken
    return taken
  }
}

/** A scanner of the text that a sticky regular expression matches: a possibly empty run of one character class. */
export class RunScanner implements Scanner {
  readonly #run: RegExp
  #isOpen = true

  constructor(run: RegExp) {
    this.#run = run
  }

  get isOpen(): boolean {
    return this.#isOpen
  }

  read(text: string, from: number): number {
    this.#run.lastIndex = from
    const end = from + this.#run.exec(text)![0].length
    this.#isOpen = end === text.length
    return end
  }
}
