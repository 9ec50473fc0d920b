/**
 * Ends a text at the first of several stop strings, while it is being written. The end of the text is buffered while it
 * may become a stop string.
 */
import { ProxyError } from '../../../base/errors.ts'
import { type MarkerMatch, MarkerSearch, MarkerSet } from './markers.ts'

/**
 * The limit on all stop strings together: 4 MiB blocked the process for nine seconds; this many characters take about
 * 20 ms.
 */
const MAX_CHARACTERS = 65_536

export class StopStrings {
  readonly #search: MarkerSearch
  readonly #include: boolean
  #pending = ''
  #matched: string | undefined

  /**
   * @param stops empty ones are ignored
   * @param options whether the stop string belongs to the text
   * @throws ProxyError `invalid_request` if their total length exceeds the limit
   */
  constructor(stops: readonly string[], { include = false } = {}) {
    if (stops.reduce((sum, { length }) => sum + length, 0) > MAX_CHARACTERS) {
      const message = `The stop strings have more than ${MAX_CHARACTERS} characters in total`
      throw new ProxyError('invalid_request', message, { param: 'stop' })
    }
    this.#search = new MarkerSearch(new MarkerSet(stops))
    this.#include = include
  }

  /** The stop string that ended the text: the first to be complete. */
  get matched(): string | undefined {
    return this.#matched
  }

  /**
   * Adds text.
   * @param mayEnd whether a stop string that this text completes ends it: not before `min_tokens`
   * @returns the text that can be emitted, nothing after a match
   */
  push(text: string, mayEnd = true): string {
    if (this.#matched !== undefined) return ''
    const all = this.#pending + text
    const match = this.#find(all, mayEnd)
    if (match !== undefined) {
      this.#matched = match.marker
      this.#pending = ''
      return all.slice(0, this.#include ? match.end : match.end - match.marker.length)
    }
    const safeLength = all.length - this.#search.heldLength
    this.#pending = all.slice(safeLength)
    return all.slice(0, safeLength)
  }

  /** Returns the buffered text at the end, when it can no longer become a stop string. */
  flush(): string {
    const shown = this.#pending
    this.#pending = ''
    return shown
  }

  /** Searches the new text; the search has already processed the buffered text. */
  #find(all: string, mayEnd: boolean): MarkerMatch | undefined {
    let match = this.#search.read(all, this.#pending.length)
    while (match !== undefined && !mayEnd) match = this.#search.read(all, match.end)
    return match
  }
}
