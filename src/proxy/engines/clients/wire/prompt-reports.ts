/** Completions without prompt ids, one after the other, before an operator is warned: one may be an engine that restarts. */
const CONFIRMATIONS = 3

/** Counts completions whose engine, or a router before it, reports no ids of the prompt. */
export class PromptReports {
  #missing = 0

  note(isReported: boolean): void {
    this.#missing = isReported ? 0 : this.#missing + 1
  }

  /** Why turns are not exact; undefined while ids are reported. */
  get warning(): string | undefined {
    if (this.#missing < CONFIRMATIONS) return undefined
    return 'it reports no token ids of prompts, or a router before it drops them: its turns are not exact'
  }
}
