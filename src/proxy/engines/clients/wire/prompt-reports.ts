/**
 * The number of consecutive completions without prompt ids before operators are warned: a single one may be due to a
 * restart of the engine.
 */
const CONFIRMATIONS = 3

/** Counts completions for which the engine, or a router in front of it, does not report the ids of the prompt. */
export class PromptReports {
  #missing = 0

  note(isReported: boolean): void {
    this.#missing = isReported ? 0 : this.#missing + 1
  }

  /** The reason why turns are inexact; undefined while ids are reported. */
  get warning(): string | undefined {
    if (this.#missing < CONFIRMATIONS) return undefined
    return 'it reports no token ids of prompts, or a router before it drops them: its turns are not exact'
  }
}
