/** How prompts came about, counted by reason since the start of the process. */
export class PromptCounts {
  readonly #counts: Record<string, number> = {}

  add(reason: string): void {
    this.#counts[reason] = (this.#counts[reason] ?? 0) + 1
  }

  toJSON(): Record<string, number> {
    return { ...this.#counts }
  }
}
