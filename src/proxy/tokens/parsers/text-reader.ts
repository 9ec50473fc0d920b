/**
 * Reads a text that is still being written, once, from front to back. Grammars are generators: they yield when they
 * need text that has not arrived, and continue at the same position when it has.
 *
 * The text is stored in the parts in which it arrived and joined on demand, so that a text that grows by a few
 * characters at a time is not copied for each of them.
 */
import { MarkerSearch, type MarkerSet } from '../tokenizer/markers.ts'

/** A part of a grammar, which yields when it needs more text. */
export type GrammarStep<T> = Generator<void, T, void>

/** Reads one value character by character; keeps its position between the parts of a text. */
export interface Scanner {
  /** Reads `text` from `from`. @returns the index after the value's last character */
  read(text: string, from: number): number
  /** Whether the value may continue. */
  readonly isOpen: boolean
}

export class TextReader {
  #ahead = ''
  #at = 0
  #isEnded = false
  #record = ''
  #isRecording = false

  push(text: string): void {
    this.#ahead = this.#at === this.#ahead.length ? text : this.#ahead.slice(this.#at) + text
    this.#at = 0
  }

  /** Declares that no more text will come. */
  end(): void {
    this.#isEnded = true
  }

  /** Restarts recording the text that is read. */
  startRecord(): void {
    this.#record = ''
    this.#isRecording = true
  }

  /** Stops recording. @returns the text that was read since {@link startRecord} */
  stopRecord(): string {
    this.#isRecording = false
    return this.#record
  }

  /** Moves back before `text`, which was read last. */
  putBack(text: string): void {
    if (text.length <= this.#at) {
      this.#at -= text.length
    } else {
      this.#ahead = text + this.#ahead.slice(this.#at)
      this.#at = 0
    }
  }

  /** Returns whether the text ends here. */
  *atEnd(): GrammarStep<boolean> {
    while (this.#at === this.#ahead.length && !this.#isEnded) yield
    return this.#at === this.#ahead.length
  }

  /** Returns the next character without reading it; empty at the end. */
  *peek(): GrammarStep<string> {
    return (yield* this.atEnd()) ? '' : this.#ahead[this.#at]!
  }

  /** Reads white space. */
  *space(): GrammarStep<string> {
    return yield* this.scan(new RunScanner(/\s*/y))
  }

  /** Reads whichever of the literals comes next, if one does. None may be a prefix of another. */
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

  /** Reads `literal` if it comes next. */
  *literal(literal: string): GrammarStep<boolean> {
    return (yield* this.oneOf([literal])) !== undefined
  }

  /**
   * Reads up to and including the first of the markers, or to the end.
   * @param onText receives the text before the marker as it arrives; without it, the text is returned
   */
  *upTo(markers: MarkerSet, onText?: (text: string) => void): GrammarStep<{ text: string; marker?: string }> {
    const search = new MarkerSearch(markers)
    let text = ''
    const gather = (more: string) => {
      text += more
    }
    const pass = onText ?? gather
    for (let searched = this.#at; ; searched = this.#at + search.heldLength) {
      const match = search.read(this.#ahead, searched)
      if (match !== undefined) {
        pass(this.#take(match.end - match.marker.length))
        this.#take(match.end)
        return { text, marker: match.marker }
      }
      pass(this.#take(this.#isEnded ? this.#ahead.length : this.#ahead.length - search.heldLength))
      if (this.#isEnded) return { text }
      yield
    }
  }

  /** Reads the text that `scanner` accepts. @returns that text */
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

/** Reads the characters that a sticky expression matches: a possibly empty run of one character class. */
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
