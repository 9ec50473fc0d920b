/**
 * Ends a text that arrives in parts at the first of several stop strings. The end of the text is buffered as long as it
 * may become a stop string.
 */
import { ProxyError } from '../../../base/errors.ts'
import { type MarkerMatch, MarkerSearch, MarkerSet } from './markers.ts'

/**
 * The maximum length of all stop strings together. Preparing this many characters takes about 20 ms; 4 MiB blocked the
 * process for nine seconds.
 */
const MAX_CHARACTERS = 65_536

/** A search for the stop strings of one completion. */
export class StopStrings {
  readonly #search: MarkerSearch
  readonly #include: boolean
  #pending = ''
  #matched: string | undefined

  /**
   * @param stops the stop strings; empty ones are ignored
   * @param options `include`: whether the stop string is part of the text
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

  /** The stop string that ended the text; undefined while none has. */
  get matched(): string | undefined {
    return this.#matched
  }

  /**
   * Adds text.
   * @param mayEnd whether a stop string that is completed by this text ends it, which it does not before `min_tokens`
   * @returns the text that can be emitted; empty after a match
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
    const safeLength = all.length - this.#search.pendingLength
    this.#pending = all.slice(safeLength)
    return all.slice(0, safeLength)
  }

  /** Returns the buffered text at the end of the completion. */
  flush(): string {
    const shown = this.#pending
    this.#pending = ''
    return shown
  }

  /** Searches the new text. The search has already processed the buffered text. */
  #find(all: string, mayEnd: boolean): MarkerMatch | undefined {
    let match = this.#search.read(all, this.#pending.length)
    while (match !== undefined && !mayEnd) match = this.#search.read(all, match.end)
    return match
  }
}
