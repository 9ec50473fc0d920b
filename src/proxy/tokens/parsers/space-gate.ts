/**
 * Holds back white space at the end of a growing text until it is known whether it belongs to the text or to the
 * markup that follows it.
 */
export class SpaceGate {
  #held = ''
  #dropsNewlines = false

  /** The newlines that come next belong to the markup before them. */
  dropLeadingNewlines(): void {
    this.#dropsNewlines = true
  }

  push(text: string): string {
    const more = this.#dropsNewlines ? text.replace(/^\n+/, '') : text
    if (more !== '') this.#dropsNewlines = false
    const solid = more.trimEnd()
    const shown = solid === '' ? '' : this.flush() + solid
    this.#held += more.slice(solid.length)
    return shown
  }

  /** Holds `markup` like space: it is text if text follows. */
  hold(markup: string): void {
    this.#held += markup
  }

  /** Markup follows: what was held belongs to it. */
  drop(): void {
    this.#held = ''
  }

  /** The text is over: what was held belongs to it. */
  flush(): string {
    const held = this.#held
    this.#held = ''
    return held
  }
}
